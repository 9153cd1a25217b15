// What @azure/service-bus does with topics, forwarding and duplicate detection. Each scenario makes its entities.
import assert from "node:assert/strict";
import {
  administer,
  bodies,
  connect,
  fromNow,
  nothingLeft,
  peekAll,
  receive,
  refused,
  sendTo,
  states,
} from "./world.mjs";

const TOPIC = "topic";

// A topic with these subscriptions: by name, the rules of each, or only the filter of its one rule.
async function makeTopic(world, subscriptions, options = {}) {
  const admin = administer(world);
  await admin.createTopic(TOPIC);
  for (const [name, given] of Object.entries(subscriptions)) {
    const [first, ...rules] = Array.isArray(given) ? given : [{ name: "only", filter: given }];
    await admin.createSubscription(TOPIC, name, { ...options, defaultRuleOptions: first });
    for (const rule of rules) await admin.createRule(TOPIC, name, rule.name, rule.filter, rule.action);
  }
  return admin;
}

const sql = (sqlExpression) => ({ sqlExpression });
const EVERYTHING = sql("1=1");

async function peekedBodies(client, subscription) {
  return bodies(await peekAll(client.createReceiver(TOPIC, subscription)));
}

export const scenarios = {
  async "every subscription of a topic gets a copy of its own"(world) {
    await makeTopic(world, { one: EVERYTHING, two: EVERYTHING });
    const client = connect(world);
    const body = Buffer.alloc(5_000, "0123456789");
    const sent = { messageId: "the-id", subject: "the-subject", correlationId: "c", contentType: "text/plain" };
    const applicationProperties = { n: 1, text: "t", yes: true };
    await sendTo(client, TOPIC, { body, applicationProperties, ...sent });
    const [one, two] = [client.createReceiver(TOPIC, "one"), client.createReceiver(TOPIC, "two")];
    for (const receiver of [one, two]) {
      const [message] = await receive(receiver, 1);
      for (const [name, value] of Object.entries(sent)) assert.equal(message[name], value);
      assert.deepEqual(message.applicationProperties, applicationProperties);
      assert.ok(Buffer.compare(message.body, body) === 0, "the body has changed");
      assert.equal(message.sequenceNumber.toNumber(), 1);
      if (receiver === one) await receiver.completeMessage(message);
      else await receiver.abandonMessage(message);
    }
    assert.deepEqual(await peekAll(one), []);
    const [again] = await receive(two, 1);
    assert.equal(again.deliveryCount, 1);
    await two.completeMessage(again);
    assert.deepEqual(await peekAll(two), []);
  },

  async "a topic is no place to receive from, and an unknown subscription is not found"(world) {
    await makeTopic(world, { one: EVERYTHING });
    const client = connect(world);
    const receiving = client.createReceiver(TOPIC).receiveMessages(1, { maxWaitTimeInMs: 2_000 });
    await refused("GeneralError", receiving, /InvalidOperation.*topic/s);
    for (const [topic, name] of [[TOPIC, "nobody"], ["nowhere", "one"]]) {
      const receiver = client.createReceiver(topic, name);
      await refused("MessagingEntityNotFound", receiver.receiveMessages(1, { maxWaitTimeInMs: 2_000 }));
    }
    await sendTo(client, "TOPIC", "case aside");
    assert.deepEqual(bodies(await receive(client.createReceiver("Topic", "ONE"), 1)), ["case aside"]);
  },

  async "a subscription gets messages that its filter matches"(world) {
    await makeTopic(world, {
      red: sql("colour = 'red' AND sys.Label IS NOT NULL"),
      heavy: sql("weight > 10 OR colour LIKE 'dark%'"),
      orders: { subject: "order", applicationProperties: { colour: "red" } },
      answers: { correlationId: "question" },
      nothing: sql("1=0"),
    });
    const client = connect(world);
    await sendTo(
      client,
      TOPIC,
      { body: "a", subject: "order", applicationProperties: { colour: "red", weight: 5 } },
      { body: "b", subject: "offer", applicationProperties: { colour: "red", weight: 11.5 } },
      { body: "c", correlationId: "question", applicationProperties: { colour: "dark blue" } },
      { body: "d", applicationProperties: { colour: "red" } },
      { body: "e" },
    );
    assert.deepEqual(await peekedBodies(client, "red"), ["a", "b"]);
    assert.deepEqual(await peekedBodies(client, "heavy"), ["b", "c"]);
    assert.deepEqual(await peekedBodies(client, "orders"), ["a"]);
    assert.deepEqual(await peekedBodies(client, "answers"), ["c"]);
    assert.deepEqual(await peekedBodies(client, "nothing"), []);
  },

  async "each matching rule with an action makes a copy, all without make one"(world) {
    await makeTopic(world, {
      one: [
        { name: "all", filter: EVERYTHING },
        { name: "red", filter: sql("colour = 'red'") },
        { name: "marked", filter: sql("weight > 1"), action: sql("SET mark = weight * 2; REMOVE colour") },
        { name: "relabelled", filter: { subject: "order" }, action: sql("SET sys.Label = 'sent on'") },
      ],
    });
    const client = connect(world);
    const applicationProperties = { colour: "red", weight: 3 };
    await sendTo(client, TOPIC, { body: "b", subject: "order", applicationProperties });
    const copies = await receive(client.createReceiver(TOPIC, "one"), 3);
    const seen = Object.fromEntries(
      copies.map((copy) => [copy.applicationProperties.RuleName, [copy.subject, copy.applicationProperties]]),
    );
    assert.deepEqual(seen, {
      [undefined]: ["order", applicationProperties],
      marked: ["order", { weight: 3, mark: 6, RuleName: "marked" }],
      relabelled: ["sent on", { ...applicationProperties, RuleName: "relabelled" }],
    });
    assert.deepEqual(new Set(bodies(copies)), new Set(["b"]));
    assert.equal(new Set(copies.map((copy) => copy.sequenceNumber.toNumber())).size, 3);
  },

  async "a filter that fails sends the message to the dead letters, if the subscription wants that"(world) {
    const failing = sql("1 / zero = 1");
    const admin = await makeTopic(world, { wants: failing }, { deadLetteringOnFilterEvaluationExceptions: true });
    const defaultRuleOptions = { name: "only", filter: failing };
    const options = { deadLetteringOnFilterEvaluationExceptions: false, defaultRuleOptions };
    await admin.createSubscription(TOPIC, "does-not", options);
    const client = connect(world);
    await sendTo(client, TOPIC, { body: "b", applicationProperties: { zero: 0 } });
    const [dead] = await receive(client.createReceiver(TOPIC, "wants", { subQueueType: "deadLetter" }), 1);
    assert.equal(dead.deadLetterReason, "FilterException");
    assert.match(dead.deadLetterErrorDescription, /'only'/);
    assert.deepEqual(await peekAll(client.createReceiver(TOPIC, "does-not", { subQueueType: "deadLetter" })), []);
    assert.deepEqual(await peekedBodies(client, "wants"), []);
  },

  async "a batch to a topic arrives in every subscription in order"(world) {
    await makeTopic(world, { all: EVERYTHING, even: sql("n % 2 = 0") });
    const client = connect(world);
    const sender = client.createSender(TOPIC);
    const batch = await sender.createMessageBatch();
    const numbers = Array.from({ length: 50 }, (_, n) => n);
    for (const n of numbers) assert.ok(batch.tryAddMessage({ body: n, applicationProperties: { n } }));
    await sender.sendMessages(batch);
    assert.deepEqual(bodies(await receive(client.createReceiver(TOPIC, "all"), 50)), numbers);
    const even = numbers.filter((n) => n % 2 === 0);
    assert.deepEqual(bodies(await receive(client.createReceiver(TOPIC, "even"), 25)), even);
  },

  async "a subscription has sessions of its own"(world) {
    const admin = await makeTopic(world, { sessions: EVERYTHING }, { requiresSession: true });
    await admin.createSubscription(TOPIC, "plain");
    const client = connect(world);
    await sendTo(
      client,
      TOPIC,
      ...[["s", "m1"], ["other", "m2"], ["s", "m3"]].map(([sessionId, body]) => ({ sessionId, body })),
      { body: "sessionless" },
    );
    const receiver = await client.acceptSession(TOPIC, "sessions", "s");
    const [one, three] = await receive(receiver, 2);
    assert.deepEqual(bodies([one, three]), ["m1", "m3"]);
    await receiver.setSessionState({ step: 1 });
    await receiver.completeMessage(one);
    await receiver.deferMessage(three);
    const other = await client.acceptNextSession(TOPIC, "sessions");
    assert.equal(other.sessionId, "other");
    assert.deepEqual(bodies(await receive(other, 1)), ["m2"]);
    await receiver.close();
    const again = await client.acceptSession(TOPIC, "sessions", "s");
    assert.deepEqual(await again.getSessionState(), { step: 1 });
    assert.deepEqual(bodies(await again.receiveDeferredMessages([three.sequenceNumber])), ["m3"]);
    const [dead] = await receive(client.createReceiver(TOPIC, "sessions", { subQueueType: "deadLetter" }), 1);
    assert.deepEqual([dead.body, dead.deadLetterReason], ["sessionless", "Session ID is null."]);
    assert.deepEqual(await peekedBodies(client, "plain"), ["m1", "m2", "m3", "sessionless"]);
  },

  async "messages of a subscription are dead-lettered, deferred, abandoned and renewed"(world) {
    await makeTopic(world, { one: EVERYTHING }, { maxDeliveryCount: 2 });
    const client = connect(world);
    await sendTo(client, TOPIC, "bad", "later", "poison", "slow");
    const receiver = client.createReceiver(TOPIC, "one");
    const [bad, later, poison, slow] = await receive(receiver, 4);
    await receiver.deadLetterMessage(bad, { deadLetterReason: "a reason", deadLetterErrorDescription: "d" });
    await receiver.deferMessage(later);
    await receiver.abandonMessage(poison, { tried: 1 });
    await receiver.abandonMessage((await receive(receiver, 1))[0], { tried: 2 });
    await world.ask("advance", { seconds: 40 });
    await receiver.renewMessageLock(slow);
    await world.ask("advance", { seconds: 40 });
    assert.deepEqual(await states(receiver), { later: "deferred", slow: "active" });
    await receiver.completeMessage(slow);
    const [fetched] = await receiver.receiveDeferredMessages(later.sequenceNumber);
    await receiver.completeMessage(fetched);
    assert.deepEqual(await peekAll(receiver), []);
    const letters = client.createReceiver(TOPIC, "one", { subQueueType: "deadLetter" });
    const dead = await receive(letters, 2);
    assert.deepEqual(
      dead.map((message) => [message.body, message.deadLetterReason, message.applicationProperties.tried]),
      [["bad", "a reason", undefined], ["poison", "MaxDeliveryCountExceeded", 2]],
    );
    for (const message of dead) {
      assert.equal(message.deadLetterSource, "topic/Subscriptions/one");
      await letters.completeMessage(message);
    }
    await nothingLeft(letters);
  },

  async "a message scheduled for a topic is copied when it is due, a cancelled one never"(world) {
    const admin = await makeTopic(world, { one: EVERYTHING, red: sql("colour = 'red'") });
    const client = connect(world);
    const sender = client.createSender(TOPIC);
    const red = { applicationProperties: { colour: "red" } };
    const due = await fromNow(world, 2);
    const [cancelled] = await sender.scheduleMessages([{ body: "cancelled", ...red }], due);
    await sender.scheduleMessages([{ body: "due", ...red }, { body: "plain" }], due);
    await sender.cancelScheduledMessages(cancelled);
    assert.equal((await admin.getTopicRuntimeProperties(TOPIC)).scheduledMessageCount, 2);
    assert.deepEqual(await peekedBodies(client, "one"), []);
    await world.ask("advance", { seconds: 120 });
    const messages = await receive(client.createReceiver(TOPIC, "one"), 2);
    assert.deepEqual(bodies(messages), ["due", "plain"]);
    assert.equal(messages[0].enqueuedTimeUtc.getTime(), due.getTime());
    assert.deepEqual(await peekedBodies(client, "red"), ["due"]);
    await refused("MessageNotFound", sender.cancelScheduledMessages(cancelled));
  },

  async "a handler on a subscription is called for each message"(world) {
    await makeTopic(world, { one: EVERYTHING });
    const client = connect(world);
    const receiver = client.createReceiver(TOPIC, "one");
    const seen = [];
    const failures = [];
    let enough;
    const all = new Promise((resolve) => (enough = resolve));
    const subscription = receiver.subscribe(
      {
        async processMessage(message) {
          seen.push(message.body);
          if (seen.length === 5) enough();
        },
        async processError({ error }) {
          failures.push(error);
          enough();
        },
      },
      { maxAutoLockRenewalDurationInMs: 0 },
    );
    await sendTo(client, TOPIC, ...[1, 2, 3, 4, 5]);
    await all;
    // The SDK completes a message after its handler has returned.
    while ((await peekedBodies(client, "one")).length && !failures.length);
    assert.deepEqual(failures, []);
    await subscription.close();
    assert.deepEqual(seen, [1, 2, 3, 4, 5]);
  },

  async "a queue forwards to a queue, along a chain"(world) {
    const admin = administer(world);
    await admin.createQueue("target");
    await admin.createQueue("middle", { forwardTo: "target" });
    await admin.createQueue("source", { forwardTo: "middle" });
    const client = connect(world);
    const sent = { body: "b", messageId: "the-id", sessionId: "s", applicationProperties: { kept: "yes" } };
    await sendTo(client, "source", sent);
    const receiver = client.createReceiver("target");
    const [message] = await receive(receiver, 1);
    assert.deepEqual(
      [message.body, message.messageId, message.sessionId, message.applicationProperties],
      [sent.body, sent.messageId, sent.sessionId, sent.applicationProperties],
    );
    await receiver.completeMessage(message);
    for (const name of ["source", "middle"]) {
      const { totalMessageCount, transferMessageCount } = await admin.getQueueRuntimeProperties(name);
      assert.deepEqual([totalMessageCount, transferMessageCount], [0, 0]);
    }
    const receiving = client.createReceiver("source").receiveMessages(1, { maxWaitTimeInMs: 2_000 });
    await refused("GeneralError", receiving, /InvalidOperation.*forward/s);
  },

  async "a message that went through too many entities is a dead letter of the transfer"(world) {
    const admin = administer(world);
    await admin.createQueue("q0");
    for (const n of [1, 2, 3, 4, 5]) await admin.createQueue(`q${n}`, { forwardTo: `q${n - 1}` });
    const client = connect(world);
    await sendTo(client, "q4", "near");
    assert.deepEqual(bodies(await receive(client.createReceiver("q0"), 1)), ["near"]);
    await sendTo(client, "q5", "far");
    const [dead] = await receive(client.createReceiver("q1", { subQueueType: "transferDeadLetter" }), 1);
    assert.deepEqual([dead.body, dead.deadLetterReason], ["far", "MaxTransferHopCountExceeded"]);
  },

  async "a subscription forwards matching messages with the changes of its rules"(world) {
    const admin = await makeTopic(world, { all: EVERYTHING });
    await admin.createQueue("target");
    const rule = { name: "red", filter: sql("colour = 'red'"), action: sql("SET seen = TRUE") };
    await admin.createSubscription(TOPIC, "forwarding", { forwardTo: "target", defaultRuleOptions: rule });
    const client = connect(world);
    await sendTo(
      client,
      TOPIC,
      { body: "blue", applicationProperties: { colour: "blue" } },
      { body: "red", applicationProperties: { colour: "red" } },
    );
    const receiver = client.createReceiver("target");
    const [message] = await receive(receiver, 1);
    assert.equal(message.body, "red");
    assert.deepEqual(message.applicationProperties, { colour: "red", seen: true, RuleName: "red" });
    await receiver.completeMessage(message);
    assert.deepEqual(await peekAll(receiver), []);
    assert.deepEqual(await peekedBodies(client, "all"), ["blue", "red"]);
  },

  async "dead letters of a queue and of a subscription are forwarded"(world) {
    const admin = administer(world);
    await admin.createQueue("letters");
    await admin.createQueue("failing", { forwardDeadLetteredMessagesTo: "letters" });
    await admin.createTopic(TOPIC);
    await admin.createSubscription(TOPIC, "failing", { forwardDeadLetteredMessagesTo: "letters" });
    const client = connect(world);
    for (const [entity, receiver] of [
      ["failing", client.createReceiver("failing")],
      [TOPIC, client.createReceiver(TOPIC, "failing")],
    ]) {
      await sendTo(client, entity, `to ${entity}`);
      const [message] = await receive(receiver, 1);
      await receiver.deadLetterMessage(message, { deadLetterReason: "a reason" });
    }
    const letters = await receive(client.createReceiver("letters"), 2);
    assert.deepEqual(
      letters.map((letter) => [letter.body, letter.deadLetterReason, letter.deadLetterSource]),
      [["to failing", "a reason", "failing"], ["to topic", "a reason", "topic/Subscriptions/failing"]],
    );
  },

  async "messages that cannot be forwarded are in the transfer dead-letter queue"(world) {
    const admin = administer(world);
    await admin.createQueue("target");
    await admin.createQueue("source", { forwardTo: "target" });
    await admin.createTopic(TOPIC);
    await admin.createSubscription(TOPIC, "source", { forwardTo: "target" });
    await admin.updateQueue({ ...(await admin.getQueue("target")), status: "SendDisabled" });
    const client = connect(world);
    await sendTo(client, "source", "refused");
    const letters = client.createReceiver("source", { subQueueType: "transferDeadLetter" });
    const [dead] = await receive(letters, 1);
    assert.deepEqual([dead.body, dead.deadLetterReason], ["refused", "MessagingEntityDisabled"]);
    assert.equal((await admin.getQueueRuntimeProperties("source")).transferDeadLetterMessageCount, 1);
    await letters.completeMessage(dead);
    assert.equal((await admin.getQueueRuntimeProperties("source")).transferDeadLetterMessageCount, 0);
    await admin.deleteQueue("target");
    await sendTo(client, TOPIC, "lost");
    const [lost] = await receive(client.createReceiver(TOPIC, "source", { subQueueType: "transferDeadLetter" }), 1);
    assert.deepEqual([lost.body, lost.deadLetterReason], ["lost", "MessagingEntityNotFound"]);
    const counts = await admin.getSubscriptionRuntimeProperties(TOPIC, "source");
    assert.equal(counts.transferDeadLetterMessageCount, 1);
  },

  async "a message id that was seen within the window is dropped"(world) {
    const admin = administer(world);
    const detecting = { requiresDuplicateDetection: true, duplicateDetectionHistoryTimeWindow: "PT1M" };
    await admin.createQueue("once", detecting);
    await admin.createTopic(TOPIC, detecting);
    await admin.createSubscription(TOPIC, "one");
    const client = connect(world);
    for (const [entity, receiver] of [
      ["once", client.createReceiver("once")],
      [TOPIC, client.createReceiver(TOPIC, "one")],
    ]) {
      const sender = client.createSender(entity);
      await sender.sendMessages({ body: "first", messageId: "a" });
      await sender.sendMessages({ body: "again", messageId: "a" });
      await sender.sendMessages([{ body: "second", messageId: "b" }, { body: "again", messageId: "b" }]);
      await receiver.completeMessage((await receive(receiver, 1))[0]);
      await sender.sendMessages({ body: "gone, but known", messageId: "a" });
      assert.deepEqual(bodies(await peekAll(receiver)), ["second"]);
      await world.ask("advance", { seconds: 61 });
      await sender.sendMessages({ body: "long after", messageId: "a" });
      assert.deepEqual(bodies(await peekAll(receiver)), ["second", "long after"]);
    }
  },

  async "an entity that is disabled says so"(world) {
    const admin = administer(world);
    await admin.createQueue("q", { status: "SendDisabled" });
    const client = connect(world);
    await refused("MessagingEntityDisabled", sendTo(client, "q", "a"));
    assert.deepEqual(await client.createReceiver("q").receiveMessages(1, { maxWaitTimeInMs: 200 }), []);
    await admin.updateQueue({ ...(await admin.getQueue("q")), status: "ReceiveDisabled" });
    await sendTo(client, "q", "b");
    const receiver = client.createReceiver("q");
    await refused("MessagingEntityDisabled", receiver.receiveMessages(1, { maxWaitTimeInMs: 2_000 }));
    await admin.updateQueue({ ...(await admin.getQueue("q")), status: "Active" });
    assert.deepEqual(bodies(await receive(client.createReceiver("q"), 1)), ["b"]);
  },
};
