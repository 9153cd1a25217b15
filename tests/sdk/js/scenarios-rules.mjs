// What the rule manager of @azure/service-bus does: rules over AMQP, without an administration client.
import assert from "node:assert/strict";
import { administer, bodies, collect, connect, peekAll, refused, sendTo } from "./world.mjs";

const TOPIC = "topic";
const SUBSCRIPTION = "subscription";

async function ruleManager(world) {
  const admin = administer(world);
  await admin.createTopic(TOPIC);
  await admin.createSubscription(TOPIC, SUBSCRIPTION);
  const client = connect(world);
  return { admin, client, manager: client.createRuleManager(TOPIC, SUBSCRIPTION) };
}

const names = (rules) => rules.map((rule) => rule.name);

export const scenarios = {
  async "a rule manager adds, lists and removes rules"(world) {
    const { manager } = await ruleManager(world);
    assert.deepEqual(await manager.getRules(), [{ name: "$Default", filter: { sqlExpression: "1=1" }, action: {} }]);
    await manager.deleteRule("$Default");
    assert.deepEqual(await manager.getRules(), []);
    const filter = { sqlExpression: "colour = 'red' AND weight > 10" };
    const action = { sqlExpression: "SET mark = 'm'" };
    await manager.createRule("sql", filter);
    await manager.createRule("with action", filter, action);
    await manager.createRule("nothing", { sqlExpression: "1=0" });
    assert.deepEqual(await manager.getRules(), [
      { name: "sql", filter, action: {} },
      { name: "with action", filter, action },
      { name: "nothing", filter: { sqlExpression: "1=0" }, action: {} },
    ]);
    await manager.deleteRule("SQL");
    assert.deepEqual(names(await manager.getRules()), ["with action", "nothing"]);
  },

  async "a correlation filter keeps every condition and its type"(world) {
    const { admin, manager } = await ruleManager(world);
    const conditions = {
      correlationId: "the-correlation",
      messageId: "the-id",
      to: "the-to",
      replyTo: "the-reply-to",
      subject: "the-subject",
      sessionId: "the-session",
      replyToSessionId: "the-reply-session",
      contentType: "text/plain",
    };
    const applicationProperties = { text: "t", integer: 3, large: 5_000_000_000, real: 1.5, yes: true, no: false };
    await manager.createRule("full", { ...conditions, applicationProperties });
    await manager.createRule("small", { subject: "only" });
    const [, full, small] = await manager.getRules();
    assert.deepEqual(full.filter, { ...conditions, applicationProperties });
    const { subject, applicationProperties: none, ...rest } = small.filter;
    assert.deepEqual([subject, none], ["only", {}]);
    assert.deepEqual(Object.values(rest), Array(7).fill(null));
    const { filter } = await admin.getRule(TOPIC, SUBSCRIPTION, "small");
    assert.equal(filter.subject, "only");
  },

  async "rules that a rule manager changes are in force for the next message"(world) {
    const { client, manager } = await ruleManager(world);
    const receiver = client.createReceiver(TOPIC, SUBSCRIPTION);
    const send = (body) => sendTo(client, TOPIC, { body, applicationProperties: { n: 3 }, subject: "s" });
    await send("by default");
    await manager.deleteRule("$Default");
    await send("by nothing");
    await manager.createRule("correlation", { subject: "s", applicationProperties: { n: 3 } });
    await send("by correlation");
    await manager.deleteRule("correlation");
    await manager.createRule("action", { sqlExpression: "n IN (1, 3, 5)" }, { sqlExpression: "SET n = n + 1" });
    await send("by sql");
    const messages = await peekAll(receiver);
    assert.deepEqual(bodies(messages), ["by default", "by correlation", "by sql"]);
    assert.deepEqual(messages[2].applicationProperties, { n: 4, RuleName: "action" });
  },

  async "an invalid rule is refused by name"(world) {
    const { client, manager } = await ruleManager(world);
    const filter = { sqlExpression: "a = 1" };
    await manager.createRule("taken", filter);
    await refused("MessagingEntityAlreadyExists", manager.createRule("Taken", filter), /Taken/);
    await refused("MessagingEntityNotFound", manager.deleteRule("nobody"), /nobody/);
    await refused("GeneralError", manager.createRule("wrong", { sqlExpression: "a = = 1" }), /ArgumentError.*line 1/s);
    await refused("GeneralError", manager.createRule("wrong", filter, { sqlExpression: "PUT a = 1" }), /ArgumentError/);
    await refused("GeneralError", manager.createRule("a".repeat(51), filter), /ArgumentError/);
    assert.deepEqual(names(await manager.getRules()), ["$Default", "taken"]);
    await refused("MessagingEntityNotFound", client.createRuleManager(TOPIC, "nobody").getRules());
  },

  async "many rules are listed in pages"(world) {
    const { manager } = await ruleManager(world);
    const numbers = Array.from({ length: 25 }, (_, number) => `r${number}`);
    await Promise.all(numbers.map((name) => manager.createRule(name, { correlationId: name })));
    const all = names(await collect(manager.listRules()));
    assert.deepEqual(new Set(all), new Set(["$Default", ...numbers]));
    const pages = await collect(manager.listRules().byPage({ maxPageSize: 10 }));
    assert.deepEqual(pages.map((page) => page.length), [10, 10, 6]);
    assert.deepEqual(pages.flatMap(names), all);
  },
};
