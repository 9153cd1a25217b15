// What the administration client of @azure/service-bus does, over TLS with the local authority.
import assert from "node:assert/strict";
import {
  administer,
  bodies,
  collect,
  connect,
  fromNow,
  peekAll,
  receive,
  refused,
  restRefused,
  sendTo,
} from "./world.mjs";

const TOPIC = "topic";
const FOR_EVER = "P10675199DT2H48M5.4775807S";
const RED = { sqlExpression: "colour = 'red'" };

async function makeSubscription(admin) {
  await admin.createTopic(TOPIC);
  await admin.createSubscription(TOPIC, "one");
}

// Every value that is expected is there; there may be more.
function assertHas(found, expected) {
  const same = Object.fromEntries(Object.keys(expected).map((name) => [name, found[name]]));
  assert.deepEqual(same, expected);
}

function assertMoments(runtime, created, modified, accessed = modified) {
  const { createdAt, modifiedAt, accessedAt } = runtime;
  const moments = [createdAt, modifiedAt, accessedAt].map((moment) => moment.getTime());
  assert.deepEqual(moments, [created, modified, accessed]);
}

async function numbered(count, make) {
  const names = Array.from({ length: count }, (_, number) => `n${String(number).padStart(3, "0")}`);
  for (const name of names) await make(name);
  return names;
}

export const scenarios = {
  async "a queue is created with the defaults of the service, and deleted"(world) {
    const admin = administer(world);
    assert.equal(await admin.queueExists("folder/Q-1"), false);
    const created = await admin.createQueue("folder/Q-1");
    assertHas(created, {
      name: "folder/Q-1",
      lockDuration: "PT1M",
      maxSizeInMegabytes: 1024,
      maxDeliveryCount: 10,
      enablePartitioning: false,
      requiresSession: false,
      enableBatchedOperations: true,
      defaultMessageTimeToLive: FOR_EVER,
      autoDeleteOnIdle: FOR_EVER,
      requiresDuplicateDetection: false,
      duplicateDetectionHistoryTimeWindow: "PT10M",
      deadLetteringOnMessageExpiration: false,
      forwardTo: undefined,
      forwardDeadLetteredMessagesTo: undefined,
      userMetadata: undefined,
      authorizationRules: undefined,
      status: "Active",
      enableExpress: false,
      availabilityStatus: "Available",
      maxMessageSizeInKilobytes: 256,
    });
    assert.equal(created._response.status, 201);
    assert.deepEqual(await admin.getQueue("FOLDER/q-1"), created);
    assert.equal(await admin.queueExists("folder/Q-1"), true);
    await admin.deleteQueue("folder/Q-1");
    assert.equal(await admin.queueExists("folder/Q-1"), false);
    await restRefused("MessageEntityNotFoundError", 404, admin.getQueue("folder/Q-1"));
  },

  async "the settings of a queue are kept, updated and cleared"(world) {
    const admin = administer(world);
    await admin.createQueue("target");
    const host = world.brokers.plain.match(/sb:\/\/([^;/]+)/)[1];
    const fixed = { requiresSession: false, requiresDuplicateDetection: true, enablePartitioning: false };
    const settings = {
      lockDuration: "PT30S",
      maxSizeInMegabytes: 2048,
      defaultMessageTimeToLive: "P1DT2H",
      deadLetteringOnMessageExpiration: true,
      duplicateDetectionHistoryTimeWindow: "PT5M",
      maxDeliveryCount: 7,
      enableBatchedOperations: false,
      status: "SendDisabled",
      userMetadata: "<notes> & more",
    };
    const forwarding = { forwardTo: "target", forwardDeadLetteredMessagesTo: "target" };
    const created = await admin.createQueue("q", { ...fixed, ...settings, ...forwarding });
    assertHas(created, { ...fixed, ...settings });
    for (const name of Object.keys(forwarding)) assert.equal(created[name], `https://${host}/target`);
    assert.deepEqual(await admin.getQueue("q"), created);
    const changes = {
      lockDuration: "PT2M",
      maxSizeInMegabytes: 3072,
      defaultMessageTimeToLive: "PT20M",
      deadLetteringOnMessageExpiration: false,
      duplicateDetectionHistoryTimeWindow: "PT1M",
      maxDeliveryCount: 3,
      enableBatchedOperations: true,
      status: "Active",
      autoDeleteOnIdle: "PT10M",
      userMetadata: undefined,
      forwardTo: undefined,
      forwardDeadLetteredMessagesTo: undefined,
    };
    const updated = await admin.updateQueue({ ...created, ...changes });
    assert.deepEqual(updated, { ...created, ...changes });
    assert.deepEqual(await admin.getQueue("q"), updated);
    for (const name of Object.keys(fixed)) {
      const change = { ...updated, [name]: !updated[name] };
      await restRefused("ServiceError", 400, admin.updateQueue(change), new RegExp(name, "i"));
    }
    assert.deepEqual(await admin.getQueue("q"), updated);
  },

  async "a topic is created, updated and deleted with its subscriptions"(world) {
    const admin = administer(world);
    const created = await admin.createTopic(TOPIC, { requiresDuplicateDetection: true, userMetadata: "notes" });
    assertHas(created, {
      name: TOPIC,
      defaultMessageTimeToLive: FOR_EVER,
      maxSizeInMegabytes: 1024,
      requiresDuplicateDetection: true,
      duplicateDetectionHistoryTimeWindow: "PT10M",
      enableBatchedOperations: true,
      status: "Active",
      userMetadata: "notes",
      supportOrdering: true,
      autoDeleteOnIdle: FOR_EVER,
      enablePartitioning: false,
      availabilityStatus: "Available",
    });
    assert.deepEqual(await admin.getTopic(TOPIC), created);
    const updated = await admin.updateTopic({ ...created, defaultMessageTimeToLive: "PT1H", status: "Disabled" });
    assertHas(updated, { defaultMessageTimeToLive: "PT1H", status: "Disabled", userMetadata: "notes" });
    await restRefused("ServiceError", 400, admin.updateTopic({ ...updated, requiresDuplicateDetection: false }));
    await admin.createSubscription(TOPIC, "one");
    assert.equal(await admin.topicExists(TOPIC), true);
    await admin.deleteTopic(TOPIC);
    assert.equal(await admin.topicExists(TOPIC), false);
    assert.equal(await admin.subscriptionExists(TOPIC, "one"), false);
    await admin.createTopic(TOPIC);
    assert.deepEqual(await collect(admin.listSubscriptions(TOPIC)), []);
  },

  async "a subscription is created, updated and deleted"(world) {
    const admin = administer(world);
    await admin.createTopic(TOPIC);
    const created = await admin.createSubscription(TOPIC, "one", { lockDuration: "PT30S", userMetadata: "notes" });
    assertHas(created, {
      topicName: TOPIC,
      subscriptionName: "one",
      lockDuration: "PT30S",
      maxDeliveryCount: 10,
      requiresSession: false,
      enableBatchedOperations: true,
      defaultMessageTimeToLive: FOR_EVER,
      autoDeleteOnIdle: FOR_EVER,
      deadLetteringOnMessageExpiration: false,
      deadLetteringOnFilterEvaluationExceptions: true,
      forwardTo: undefined,
      forwardDeadLetteredMessagesTo: undefined,
      userMetadata: "notes",
      status: "Active",
      availabilityStatus: "Available",
    });
    assert.deepEqual(await admin.getSubscription(TOPIC, "one"), created);
    const changes = { maxDeliveryCount: 4, deadLetteringOnMessageExpiration: true, userMetadata: undefined };
    const updated = await admin.updateSubscription({ ...created, ...changes });
    assert.deepEqual(updated, { ...created, ...changes });
    await restRefused("ServiceError", 400, admin.updateSubscription({ ...updated, requiresSession: true }));
    assert.equal(await admin.subscriptionExists(TOPIC, "ONE"), true);
    await admin.deleteSubscription(TOPIC, "one");
    assert.equal(await admin.subscriptionExists(TOPIC, "one"), false);
    await restRefused("MessageEntityNotFoundError", 404, admin.getSubscription(TOPIC, "one"));
  },

  async "a new subscription has the given rule, or the default rule"(world) {
    const admin = administer(world);
    await admin.createTopic(TOPIC);
    await admin.createSubscription(TOPIC, "default");
    const action = { sqlExpression: "SET mark = 1", sqlParameters: undefined };
    await admin.createSubscription(TOPIC, "given", { defaultRuleOptions: { name: "mine", filter: RED, action } });
    const [first, ...more] = await collect(admin.listRules(TOPIC, "default"));
    assert.deepEqual([first.name, first.filter.sqlExpression, more], ["$Default", "1=1", []]);
    assert.equal((await admin.getRule(TOPIC, "default", "$Default")).filter.sqlExpression, "1=1");
    const filter = { ...RED, sqlParameters: undefined };
    assert.deepEqual(await collect(admin.listRules(TOPIC, "given")), [{ name: "mine", filter, action }]);
    // An update of the subscription is none of its rules.
    await admin.updateSubscription({ ...(await admin.getSubscription(TOPIC, "given")), maxDeliveryCount: 2 });
    assert.deepEqual((await collect(admin.listRules(TOPIC, "given"))).map((rule) => rule.name), ["mine"]);
  },

  async "rules are created, updated and deleted, with values of every type"(world) {
    const admin = administer(world);
    await makeSubscription(admin);
    const moment = new Date(Date.UTC(2030, 0, 2, 3, 4, 5));
    const values = { text: "<t> & 'q'", whole: 3, real: 1.5, yes: true, moment };
    const correlation = {
      correlationId: "c",
      subject: "s",
      to: "t",
      replyTo: "r",
      replyToSessionId: "rs",
      sessionId: "se",
      messageId: "m",
      contentType: "ct",
      applicationProperties: values,
    };
    const empty = { sqlExpression: undefined, sqlParameters: undefined };
    const full = await admin.createRule(TOPIC, "one", "full", correlation);
    assert.deepEqual(full, { name: "full", filter: correlation, action: empty });
    assert.deepEqual(await admin.getRule(TOPIC, "one", "FULL"), full);
    const sqlParameters = { "@low": 10, "@colour": "red", "@flag": true };
    const filter = { sqlExpression: "weight > @low AND colour = @colour", sqlParameters };
    const action = { sqlExpression: "SET mark = @m; REMOVE colour", sqlParameters: { "@m": "new" } };
    assert.deepEqual(await admin.createRule(TOPIC, "one", "sql", filter, action), { name: "sql", filter, action });
    const nothing = { sqlExpression: "1=0", sqlParameters: undefined };
    const changed = await admin.updateRule(TOPIC, "one", { name: "full", filter: nothing, action });
    assert.deepEqual(changed, { name: "full", filter: nothing, action });
    await admin.deleteRule(TOPIC, "one", "$Default");
    const rules = await collect(admin.listRules(TOPIC, "one"));
    assert.deepEqual(rules.map((rule) => rule.name), ["full", "sql"]);
    assert.equal(await admin.ruleExists(TOPIC, "one", "$Default"), false);
    assert.equal(await admin.ruleExists(TOPIC, "one", "sql"), true);
    // They do what they say.
    const client = connect(world);
    const heavy = { colour: "red", weight: 11 };
    await sendTo(client, TOPIC, { body: "passes", applicationProperties: heavy }, { body: "does not" });
    const [message, ...more] = await peekAll(client.createReceiver(TOPIC, "one"));
    assert.deepEqual([message.body, more], ["passes", []]);
    assert.deepEqual(message.applicationProperties, { weight: 11, mark: "new", RuleName: "sql" });
  },

  async "more than a hundred queues are listed in pages"(world) {
    const admin = administer(world);
    const names = await numbered(105, (name) => admin.createQueue(name));
    const all = [...names, "queue", "sessions"];
    assert.deepEqual((await collect(admin.listQueues())).map((queue) => queue.name), all);
    const pages = await collect(admin.listQueues().byPage());
    assert.deepEqual(pages.map((page) => page.length), [100, 7]);
    const small = await collect(admin.listQueuesRuntimeProperties().byPage({ maxPageSize: 40 }));
    assert.deepEqual(small.map((page) => page.length), [40, 40, 27]);
    assert.deepEqual(small.flat().map((queue) => queue.name), all);
    const { value: second } = await admin.listQueues().byPage({ maxPageSize: 10, continuationToken: "95" }).next();
    assert.deepEqual(second.map((queue) => queue.name), all.slice(95, 105));
  },

  async "topics, subscriptions and rules are listed in pages"(world) {
    const admin = administer(world);
    const topics = await numbered(12, (name) => admin.createTopic(name));
    await makeSubscription(admin);
    await admin.deleteSubscription(TOPIC, "one");
    const subscriptions = await numbered(12, (name) => admin.createSubscription(TOPIC, name));
    const rules = await numbered(12, (name) => admin.createRule(TOPIC, "n000", name, { correlationId: name }));
    for (const [listing, key, expected] of [
      [admin.listTopics(), "name", [...topics, TOPIC]],
      [admin.listTopicsRuntimeProperties(), "name", [...topics, TOPIC]],
      [admin.listSubscriptions(TOPIC), "subscriptionName", subscriptions],
      [admin.listSubscriptionsRuntimeProperties(TOPIC), "subscriptionName", subscriptions],
      [admin.listRules(TOPIC, "n000"), "name", ["$Default", ...rules]],
    ]) {
      const pages = await collect(listing.byPage({ maxPageSize: 5 }));
      assert.deepEqual(pages.map((page) => page.length), expected.length === 13 ? [5, 5, 3] : [5, 5, 2]);
      assert.deepEqual(pages.flat().map((each) => each[key]), expected);
    }
  },

  async "runtime properties of a queue have the counts"(world) {
    const admin = administer(world);
    const start = await world.ask("now");
    await admin.createQueue("q");
    assertMoments(await admin.getQueueRuntimeProperties("q"), start, start);
    const client = connect(world);
    await sendTo(client, "q", "a", "b", "locked", "deferred", "dead");
    const sender = client.createSender("q");
    await sender.scheduleMessages([{ body: "later" }, { body: "later still" }], await fromNow(world, 60));
    const receiver = client.createReceiver("q");
    const [, , , deferred, dead] = await receive(receiver, 5);
    await receiver.deferMessage(deferred);
    await receiver.deadLetterMessage(dead);
    await world.ask("advance", { seconds: 30 });
    await admin.updateQueue({ ...(await admin.getQueue("q")), maxDeliveryCount: 3 });
    const found = await admin.getQueueRuntimeProperties("q");
    assertHas(found, {
      name: "q",
      activeMessageCount: 3,
      deadLetterMessageCount: 1,
      scheduledMessageCount: 2,
      transferMessageCount: 0,
      transferDeadLetterMessageCount: 0,
      totalMessageCount: 7,
    });
    assert.ok(found.sizeInBytes > 0);
    assertMoments(found, start, start + 30_000);
    const [listed] = await collect(admin.listQueuesRuntimeProperties());
    assert.deepEqual(listed, found);
    const all = client.createReceiver("q", { receiveMode: "receiveAndDelete" });
    await world.ask("advance", { seconds: 60 });
    assert.deepEqual(bodies(await receive(all, 3)), ["a", "b", "locked"]);
    const after = await admin.getQueueRuntimeProperties("q");
    assert.equal(after.activeMessageCount, 0);
    assert.ok(after.sizeInBytes < found.sizeInBytes);
  },

  async "runtime properties of topics and subscriptions count what is in them"(world) {
    const admin = administer(world);
    const start = await world.ask("now");
    await makeSubscription(admin);
    await admin.createSubscription(TOPIC, "red", { defaultRuleOptions: { name: "red", filter: RED } });
    const client = connect(world);
    await sendTo(client, TOPIC, "a", { body: "b", applicationProperties: { colour: "red" } }, "c");
    await client.createSender(TOPIC).scheduleMessages({ body: "later" }, await fromNow(world, 60));
    const receiver = client.createReceiver(TOPIC, "one");
    await receiver.deadLetterMessage((await receive(receiver, 1))[0]);
    const topic = await admin.getTopicRuntimeProperties(TOPIC);
    assertHas(topic, { name: TOPIC, subscriptionCount: 2, scheduledMessageCount: 1 });
    assert.ok(topic.sizeInBytes > 0);
    assertMoments(topic, start, start);
    const counts = (active, deadLetter) => ({
      topicName: TOPIC,
      activeMessageCount: active,
      deadLetterMessageCount: deadLetter,
      transferMessageCount: 0,
      transferDeadLetterMessageCount: 0,
      totalMessageCount: active + deadLetter,
    });
    const one = await admin.getSubscriptionRuntimeProperties(TOPIC, "one");
    assertHas(one, { subscriptionName: "one", ...counts(2, 1) });
    assertMoments(one, start, start);
    assertHas(await admin.getSubscriptionRuntimeProperties(TOPIC, "red"), counts(1, 0));
    assert.deepEqual((await collect(admin.listSubscriptionsRuntimeProperties(TOPIC)))[0], one);
  },

  async "the namespace has its properties"(world) {
    const start = await world.ask("now");
    const found = await administer(world).getNamespaceProperties();
    assertHas(found, { name: "sbemulatorns", messagingSku: "Standard", messagingUnits: undefined });
    assert.ok(Math.abs(found.createdAt.getTime() - start) < 60_000);
  },

  async "errors of administration have the code of the SDK"(world) {
    const admin = administer(world);
    await makeSubscription(admin);
    const missing = (work) => restRefused("MessageEntityNotFoundError", 404, work);
    await missing(admin.getQueue("nowhere"));
    await missing(admin.getTopic("nowhere"));
    await missing(admin.getSubscription(TOPIC, "nobody"));
    await missing(admin.getRule(TOPIC, "one", "nothing"));
    await missing(admin.deleteQueue("nowhere"));
    await missing(admin.deleteRule(TOPIC, "one", "nothing"));
    await missing(admin.updateQueue({ ...(await admin.getQueue("queue")), name: "nowhere" }));
    await missing(admin.createSubscription("nowhere", "one"));
    await missing(collect(admin.listSubscriptions("nowhere")));
    await missing(admin.createRule(TOPIC, "nobody", "r", RED));
    const taken = (work) => restRefused("MessageEntityAlreadyExistsError", 409, work);
    await taken(admin.createQueue("queue"));
    await taken(admin.createTopic("QUEUE"));
    await taken(admin.createQueue(TOPIC));
    await taken(admin.createSubscription(TOPIC, "One"));
    await taken(admin.createRule(TOPIC, "one", "$default", RED));
    const wrong = (words, work) => restRefused("ServiceError", 400, work, words);
    await wrong(/LockDuration/, admin.createQueue("q", { lockDuration: "PT10M" }));
    await wrong(/LockDuration/, admin.createQueue("q", { lockDuration: "soon" }));
    await wrong(/MaxDeliveryCount/, admin.createQueue("q", { maxDeliveryCount: 0 }));
    await wrong(/ForwardTo/, admin.createQueue("q", { forwardTo: "nowhere" }));
    await wrong(/name/i, admin.createSubscription(TOPIC, "s".repeat(51)));
    await wrong(/a = =/, admin.createRule(TOPIC, "one", "r", { sqlExpression: "a = = 1" }));
    await wrong(/Action/i, admin.createRule(TOPIC, "one", "r", RED, { sqlExpression: "PUT a = 1" }));
    assert.equal(await admin.queueExists("q"), false);
    assert.equal(await admin.ruleExists(TOPIC, "one", "r"), false);
  },

  async "administration needs a key with the right to manage"(world) {
    const unauthorized = (work) => restRefused("UnauthorizedRequestError", 401, work);
    const guessing = administer(world, {}, world.brokers.plain.replace("SAS_KEY_VALUE", "guessed"));
    await unauthorized(guessing.getQueue("queue"));
    const admin = administer(world);
    const rule = (keyName, ...accessRights) => ({
      claimType: "SharedAccessKey",
      keyName,
      accessRights,
      primaryKey: `${keyName}-1`,
      secondaryKey: `${keyName}-2`,
    });
    const authorizationRules = [rule("sender", "Send"), rule("manager", "Manage", "Send", "Listen")];
    const { authorizationRules: kept } = await admin.createQueue("q", { authorizationRules });
    assert.deepEqual(
      kept.map((each) => [each.keyName, each.primaryKey, each.secondaryKey, [...each.accessRights].sort()]),
      [
        ["sender", "sender-1", "sender-2", ["Send"]],
        ["manager", "manager-1", "manager-2", ["Listen", "Manage", "Send"]],
      ],
    );
    const { plain } = world.brokers;
    const as = (name, key) => plain.replace("RootManageSharedAccessKey", name).replace("SAS_KEY_VALUE", key);
    const sending = connect(world, {}, as("sender", "sender-2"));
    await sendTo(sending, "q", "a");
    await refused("UnauthorizedAccess", sending.createReceiver("q").receiveMessages(1, { maxWaitTimeInMs: 2_000 }));
    await unauthorized(administer(world, {}, as("sender", "sender-1")).getQueue("q"));
    const managing = administer(world, {}, as("manager", "manager-1"));
    assert.equal((await managing.getQueueRuntimeProperties("q")).activeMessageCount, 1);
    await unauthorized(managing.getQueue("queue"));
  },

  async "deleting an entity ends its links, and a new one of that name is empty"(world) {
    const admin = administer(world);
    await makeSubscription(admin);
    await admin.createQueue("q");
    const client = connect(world);
    for (const [entity, receiver, recreate] of [
      ["q", client.createReceiver("q"), () => admin.deleteQueue("q").then(() => admin.createQueue("q"))],
      [
        TOPIC,
        client.createReceiver(TOPIC, "one"),
        () => admin.deleteTopic(TOPIC).then(() => makeSubscription(admin)),
      ],
    ]) {
      await sendTo(client, entity, "old", "older");
      const [held] = await receive(receiver, 1);
      await recreate();
      await refused("MessageLockLost", receiver.completeMessage(held));
      assert.deepEqual(await peekAll(receiver), []);
      await sendTo(client, entity, "new");
      const [fresh] = await receive(receiver, 1);
      assert.deepEqual([fresh.body, fresh.deliveryCount], ["new", 0]);
    }
    await admin.deleteQueue("q");
    await refused("MessagingEntityNotFound", sendTo(client, "q", "late"));
    const waiting = client.createReceiver("queue");
    const ended = new Promise((resolve) => {
      waiting.subscribe({ async processMessage() {}, processError: async ({ error }) => resolve(error) });
    });
    await sendTo(client, "queue", "seen");
    while ((await world.ask("counters")).active);
    await admin.deleteQueue("queue");
    assert.equal((await ended).code, "MessagingEntityNotFound");
  },

  async "the older version of the interface knows no message size"(world) {
    const admin = administer(world, { serviceVersion: "2017-04" });
    const created = await admin.createQueue("q", { maxDeliveryCount: 4 });
    assertHas(created, { name: "q", maxDeliveryCount: 4, maxMessageSizeInKilobytes: undefined });
    assert.equal((await admin.updateQueue({ ...created, maxDeliveryCount: 5 })).maxDeliveryCount, 5);
  },

  async "administration works without TLS where a policy of the client says so"(world) {
    const admin = administer(world);
    // The SDK has no setting for it.
    admin.pipeline.addPolicy({
      name: "plainPolicy",
      async sendRequest(request, next) {
        request.url = request.url.replace("https://", "http://");
        request.allowInsecureConnection = true;
        return next(request);
      },
    });
    await makeSubscription(admin);
    await admin.createRule(TOPIC, "one", "r", RED);
    const { forwardTo } = await admin.createQueue("q", { forwardTo: "queue" });
    assert.match(forwardTo, /^http:.*\/queue$/);
    assert.deepEqual((await collect(admin.listRules(TOPIC, "one"))).map((rule) => rule.name), ["$Default", "r"]);
    await restRefused("MessageEntityAlreadyExistsError", 409, admin.createTopic(TOPIC));
    await admin.deleteTopic(TOPIC);
    assert.deepEqual((await collect(admin.listTopics())).map((topic) => topic.name), []);
  },
};
