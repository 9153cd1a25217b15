// What @azure/service-bus does with queues: each scenario is a function that throws when something is wrong.
import assert from "node:assert/strict";
import Long from "long";
import WebSocket from "ws";
import { bodies, connect, fromNow, nothingLeft, receive, refused, sendTo, states } from "./world.mjs";

const QUEUE = "queue";
const SESSIONS = "sessions";

async function send(client, ...messages) {
  await sendTo(client, QUEUE, ...messages);
}

async function sendToSessions(client, ...messages) {
  await sendTo(client, SESSIONS, ...messages.map(([sessionId, body]) => ({ sessionId, body })));
}

async function thereAndBack(client) {
  const large = Buffer.alloc(200_000, "0123456789");
  await send(client, { body: "hello", subject: "greeting", applicationProperties: { n: 1 } }, { body: large });
  const receiver = client.createReceiver(QUEUE);
  const [first, second] = await receive(receiver, 2);
  assert.equal(first.body, "hello");
  assert.equal(first.subject, "greeting");
  assert.deepEqual(first.applicationProperties, { n: 1 });
  assert.ok(Buffer.compare(second.body, large) === 0, "the large body has changed");
  await receiver.completeMessage(first);
  await receiver.completeMessage(second);
  await nothingLeft(receiver);
}

export const scenarios = {
  async "a message is sent, received and completed"(world) {
    await thereAndBack(connect(world));
  },

  async "a message is sent and received over TLS"(world) {
    await thereAndBack(connect(world, {}, world.brokers.tls));
  },

  async "a message is sent and received over WebSocket"(world) {
    await thereAndBack(connect(world, { webSocketOptions: { webSocket: WebSocket } }, world.brokers.tls));
  },

  async "a shared access signature is enough, without SASL"(world) {
    await thereAndBack(connect(world, {}, world.brokers.signature));
  },

  async "a batch arrives as single messages in order"(world) {
    const client = connect(world);
    const sender = client.createSender(QUEUE);
    const batch = await sender.createMessageBatch();
    assert.equal(batch.maxSizeInBytes, 262144);
    for (let number = 0; number < 50; number++) assert.ok(batch.tryAddMessage({ body: `m${number}` }));
    await sender.sendMessages(batch);
    await sender.sendMessages([{ body: "list-1" }, { body: "list-2" }]);
    const messages = await receive(client.createReceiver(QUEUE), 52);
    const numbers = Array.from({ length: 50 }, (_, number) => `m${number}`);
    assert.deepEqual(messages.map((message) => message.body), [...numbers, "list-1", "list-2"]);
    assert.deepEqual(messages.map((message) => message.sequenceNumber.toNumber()), messages.map((_, at) => at + 1));
  },

  async "a message over the limit is refused and the link lives on"(world) {
    const client = connect(world);
    const sender = client.createSender(QUEUE);
    await refused("MessageSizeExceeded", sender.sendMessages({ body: Buffer.alloc(300_000) }));
    await sender.sendMessages({ body: "small" });
    const [message] = await receive(client.createReceiver(QUEUE), 1);
    assert.equal(message.body, "small");
  },

  async "an abandoned message is counted and finally dead-lettered"(world) {
    const client = connect(world);
    await send(client, "poison");
    const receiver = client.createReceiver(QUEUE);
    for (let count = 0; count < 3; count++) {
      const [message] = await receive(receiver, 1);
      assert.equal(message.deliveryCount, count);
      await receiver.abandonMessage(message, { tried: count });
    }
    await nothingLeft(receiver);
    const letters = client.createReceiver(QUEUE, { subQueueType: "deadLetter" });
    const [dead] = await receive(letters, 1);
    assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
    assert.equal(dead.applicationProperties.tried, 2);
  },

  async "a dead-lettered message says why"(world) {
    const client = connect(world);
    await send(client, { body: "bad", applicationProperties: { kept: "yes" } });
    const receiver = client.createReceiver(QUEUE);
    const [message] = await receive(receiver, 1);
    await receiver.deadLetterMessage(message, {
      deadLetterReason: "a reason",
      deadLetterErrorDescription: "a description",
      extra: 7,
    });
    await nothingLeft(receiver);
    const letters = client.createReceiver(QUEUE, { subQueueType: "deadLetter" });
    const [dead] = await receive(letters, 1);
    assert.equal(dead.body, "bad");
    assert.equal(dead.deadLetterReason, "a reason");
    assert.equal(dead.deadLetterErrorDescription, "a description");
    assert.equal(dead.deadLetterSource, QUEUE);
    assert.equal(dead.applicationProperties.kept, "yes");
    assert.equal(dead.applicationProperties.extra, 7);
    await letters.completeMessage(dead);
    await nothingLeft(letters);
  },

  async "a deferred message is no longer received"(world) {
    const client = connect(world);
    await send(client, "later", "now");
    const receiver = client.createReceiver(QUEUE);
    const [later, now] = await receive(receiver, 2);
    await receiver.deferMessage(later);
    await receiver.completeMessage(now);
    await nothingLeft(receiver);
    assert.deepEqual(await world.ask("counters"), { active: 0, deferred: 1 });
  },

  async "receive-and-delete leaves nothing"(world) {
    const client = connect(world);
    await send(client, "a", "b");
    const receiver = client.createReceiver(QUEUE, { receiveMode: "receiveAndDelete" });
    assert.deepEqual((await receive(receiver, 2)).map((message) => message.body), ["a", "b"]);
    assert.deepEqual(await world.ask("counters"), { active: 0, deferred: 0 });
  },

  async "a small batch leaves the rest for the next"(world) {
    const client = connect(world);
    const sender = client.createSender(QUEUE);
    await sender.sendMessages(Array.from({ length: 30 }, (_, number) => ({ body: number })));
    const receiver = client.createReceiver(QUEUE);
    const seen = [];
    for (const size of [1, 10, 4, 15]) {
      for (const message of await receive(receiver, size)) {
        seen.push(message.body);
        assert.equal(message.deliveryCount, 0);
        await receiver.completeMessage(message);
      }
    }
    assert.deepEqual(seen, Array.from({ length: 30 }, (_, number) => number));
    await nothingLeft(receiver);
  },

  async "a request for more messages than available returns the available ones"(world) {
    const client = connect(world);
    const receiver = client.createReceiver(QUEUE);
    for (const round of [1, 2, 3]) {
      await send(client, `a${round}`, `b${round}`);
      // The SDK drains the link when nothing more comes, and closes it if the broker is slow to answer.
      const batch = await receiver.receiveMessages(50, { maxWaitTimeInMs: 5_000 });
      assert.deepEqual(batch.map((message) => message.body), [`a${round}`, `b${round}`]);
      for (const message of batch) await receiver.completeMessage(message);
    }
  },

  async "a subscriber is called for each message and completes it"(world) {
    const client = connect(world);
    const receiver = client.createReceiver(QUEUE);
    const seen = [];
    const failures = [];
    let enough;
    const all = new Promise((resolve) => (enough = resolve));
    const subscription = receiver.subscribe(
      {
        async processMessage(message) {
          seen.push(message.body);
          if (seen.length === 10) enough();
        },
        async processError({ error }) {
          failures.push(error);
          enough();
        },
      },
      { maxConcurrentCalls: 3, maxAutoLockRenewalDurationInMs: 0 },
    );
    await send(client, ...Array.from({ length: 10 }, (_, number) => `m${number}`));
    await all;
    // The SDK completes a message after its handler has returned.
    while ((await world.ask("counters")).active && !failures.length);
    assert.deepEqual(failures, []);
    await subscription.close();
    await receiver.close();
    assert.deepEqual(seen.sort(), Array.from({ length: 10 }, (_, number) => `m${number}`));
  },

  async "a handler that throws abandons the message"(world) {
    const client = connect(world);
    await send(client, "hard");
    const receiver = client.createReceiver(QUEUE);
    const counts = [];
    const sources = [];
    let enough;
    const twice = new Promise((resolve) => (enough = resolve));
    const subscription = receiver.subscribe(
      {
        async processMessage(message) {
          counts.push(message.deliveryCount);
          if (message.deliveryCount === 0) throw new Error("too hard");
          enough();
        },
        async processError({ errorSource }) {
          sources.push(errorSource);
        },
      },
      { maxAutoLockRenewalDurationInMs: 0 },
    );
    await twice;
    await subscription.close();
    assert.deepEqual(counts, [0, 1]);
    assert.deepEqual(sources, ["processMessageCallback"]);
  },

  async "settling after the lock expired is a lost lock"(world) {
    const client = connect(world);
    await send(client, "slow");
    const receiver = client.createReceiver(QUEUE);
    const [message] = await receive(receiver, 1);
    await world.ask("advance", { seconds: 61 });
    await refused("MessageLockLost", receiver.completeMessage(message));
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    assert.notEqual(again.lockToken, message.lockToken);
    await receiver.completeMessage(again);
  },

  async "an expired message is not received"(world) {
    const client = connect(world);
    await send(client, { body: "short", timeToLive: 10_000 }, { body: "long" });
    await world.ask("advance", { seconds: 11 });
    const receiver = client.createReceiver(QUEUE);
    const [message] = await receive(receiver, 1);
    assert.equal(message.body, "long");
    await nothingLeft(receiver);
  },

  async "a message without an id gets one and can be completed"(world) {
    const client = connect(world);
    await send(client, { body: "anonymous" });
    const receiver = client.createReceiver(QUEUE);
    const [message] = await receive(receiver, 1);
    assert.match(message.messageId, /^[0-9a-f]{32}$/);
    await receiver.completeMessage(message);
    await nothingLeft(receiver);
  },

  async "every property that the sender sets arrives"(world) {
    const client = connect(world);
    const sent = {
      messageId: "the-id",
      sessionId: "the-session",
      correlationId: "the-correlation",
      subject: "the-subject",
      contentType: "application/json",
      to: "the-to",
      replyTo: "the-reply-to",
      replyToSessionId: "the-reply-session",
      partitionKey: "the-session",
    };
    const applicationProperties = {
      text: "t",
      empty: "",
      integer: 3,
      negative: -70_000,
      real: 1.5,
      yes: true,
      no: false,
      nothing: null,
      moment: new Date(Date.UTC(2030, 0, 2, 3, 4, 5)),
      letters: "äöü€😀",
    };
    const body = { list: [1, "two", null], nested: { yes: true } };
    await send(client, { body, applicationProperties, timeToLive: 300_000, ...sent });
    const [message] = await receive(client.createReceiver(QUEUE), 1);
    for (const [name, value] of Object.entries(sent)) assert.deepEqual(message[name], value, name);
    const { moment, ...others } = applicationProperties;
    const { moment: received, ...receivedOthers } = message.applicationProperties;
    assert.deepEqual(receivedOthers, others);
    assert.equal(new Date(received).getTime(), moment.getTime());
    assert.deepEqual(message.body, body);
    assert.equal(message.sequenceNumber.toNumber(), 1);
    assert.equal(message.enqueuedSequenceNumber, undefined);
    assert.equal(message.deliveryCount, 0);
    assert.equal(message.state, "active");
    const now = await world.ask("now");
    assert.equal(message.enqueuedTimeUtc.getTime(), now);
    assert.equal(message.lockedUntilUtc.getTime(), now + 60_000);
    // Not timeToLive: the SDK takes it for the way from creation (by the sender's clock) to expiry (by the broker's).
    assert.equal(message.expiresAtUtc.getTime(), now + 300_000);
    assert.match(message.lockToken, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
  },

  async "bodies of every AMQP kind arrive as they were sent"(world) {
    const client = connect(world);
    const sequence = [[1, 2], ["three"]];
    await send(
      client,
      { bodyType: "value", body: "a value" },
      { bodyType: "sequence", body: sequence },
      { bodyType: "data", body: Buffer.from([0, 1, 255]) },
    );
    const messages = await receive(client.createReceiver(QUEUE), 3);
    const kinds = messages.map((message) => message._rawAmqpMessage.bodyType);
    assert.deepEqual(kinds, ["value", "sequence", "data"]);
    assert.equal(messages[0].body, "a value");
    assert.deepEqual(messages[1].body, sequence);
    assert.deepEqual([...messages[2].body], [0, 1, 255]);
  },

  async "two receivers share the messages"(world) {
    const client = connect(world);
    const [one, two] = [client.createReceiver(QUEUE), connect(world).createReceiver(QUEUE)];
    await client.createSender(QUEUE).sendMessages(Array.from({ length: 10 }, (_, number) => ({ body: number })));
    const halves = await Promise.all([receive(one, 5), receive(two, 5)]);
    assert.equal(new Set(halves.flat().map((message) => message.body)).size, 10);
  },

  async "a message stays locked when its receiver closes"(world) {
    const client = connect(world);
    await send(client, "held");
    const first = client.createReceiver(QUEUE);
    assert.equal((await receive(first, 1)).length, 1);
    await first.close();
    const second = client.createReceiver(QUEUE);
    await nothingLeft(second);
    await world.ask("advance", { seconds: 61 });
    const [message] = await receive(second, 1);
    assert.equal(message.deliveryCount, 1);
  },

  async "an unknown queue is not found"(world) {
    const client = connect(world);
    await refused("MessagingEntityNotFound", client.createSender("nowhere").sendMessages({ body: "a" }));
    const receiver = client.createReceiver("nowhere");
    await refused("MessagingEntityNotFound", receiver.receiveMessages(1, { maxWaitTimeInMs: 2_000 }));
  },

  async "a wrong key is unauthorized"(world) {
    const client = connect(world, {}, world.brokers.plain.replace("SAS_KEY_VALUE", "guessed"));
    await refused("UnauthorizedAccess", client.createSender(QUEUE).sendMessages({ body: "a" }));
  },

  async "a renewed lock outlives its first duration"(world) {
    const client = connect(world);
    await send(client, "slow");
    const receiver = client.createReceiver(QUEUE);
    const [message] = await receive(receiver, 1);
    await world.ask("advance", { seconds: 40 });
    const until = await receiver.renewMessageLock(message);
    assert.equal(until.getTime(), (await fromNow(world, 1)).getTime());
    assert.equal(message.lockedUntilUtc.getTime(), until.getTime());
    await world.ask("advance", { seconds: 40 });
    await receiver.completeMessage(message);
    await nothingLeft(receiver);
  },

  async "a lock that ran out is not renewed"(world) {
    const client = connect(world);
    await send(client, "slow");
    const receiver = client.createReceiver(QUEUE);
    const [message] = await receive(receiver, 1);
    await world.ask("advance", { seconds: 61 });
    await refused("MessageLockLost", receiver.renewMessageLock(message));
  },

  async "a message is settled by its token when its link is lost"(world) {
    const client = connect(world, { retryOptions: { maxRetries: 3, retryDelayInMs: 10, timeoutInMs: 5_000 } });
    await send(client, "complete", "abandon", "defer", "dead-letter");
    const receiver = client.createReceiver(QUEUE);
    const [complete, abandon, defer, letter] = await receive(receiver, 4);
    await world.ask("cut");
    await receiver.completeMessage(complete);
    await receiver.abandonMessage(abandon, { tried: true });
    await receiver.deferMessage(defer);
    await receiver.deadLetterMessage(letter, { deadLetterReason: "a reason" });
    assert.deepEqual(await states(receiver), { abandon: "active", defer: "deferred" });
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    assert.deepEqual(again.applicationProperties, { tried: true });
    const letters = client.createReceiver(QUEUE, { subQueueType: "deadLetter" });
    assert.equal((await receive(letters, 1))[0].deadLetterReason, "a reason");
  },

  async "peeking goes on where it stopped"(world) {
    const client = connect(world);
    const numbers = Array.from({ length: 25 }, (_, number) => number + 1);
    await client.createSender(QUEUE).sendMessages(numbers.map((body) => ({ body })));
    const receiver = client.createReceiver(QUEUE);
    const pages = [];
    for (const size of [1, 10, 10, 10, 10]) pages.push(bodies(await receiver.peekMessages(size)));
    assert.deepEqual(pages.map((page) => page.length), [1, 10, 10, 4, 0]);
    assert.deepEqual(pages.flat(), numbers);
    const some = await receiver.peekMessages(3, { fromSequenceNumber: Long.fromNumber(20) });
    assert.deepEqual(bodies(some), [20, 21, 22]);
    assert.deepEqual(await receiver.peekMessages(1, { fromSequenceNumber: Long.fromNumber(26) }), []);
    const [first] = await receiver.peekMessages(1, { fromSequenceNumber: Long.ONE, omitMessageBody: true });
    assert.equal(first.sequenceNumber.toNumber(), 1);
    // Nothing was locked or counted by looking.
    const received = await receive(receiver, 25);
    assert.deepEqual(new Set(received.map((message) => message.deliveryCount)), new Set([0]));
  },

  async "peeking shows every message with its state"(world) {
    const client = connect(world);
    const sender = client.createSender(QUEUE);
    await sender.sendMessages(["deferred", "locked", "waiting"].map((body) => ({ body })));
    const due = await fromNow(world, 5);
    await sender.scheduleMessages({ body: "scheduled" }, due);
    const receiver = client.createReceiver(QUEUE);
    const [deferred] = await receive(receiver, 2);
    await receiver.deferMessage(deferred);
    assert.deepEqual(await states(receiver), {
      deferred: "deferred",
      locked: "active",
      waiting: "active",
      scheduled: "scheduled",
    });
    const [scheduled] = await receiver.peekMessages(1, { fromSequenceNumber: Long.fromNumber(4) });
    assert.equal(scheduled.scheduledEnqueueTimeUtc.getTime(), due.getTime());
  },

  async "scheduled messages arrive when they are due and cancelled ones never"(world) {
    const client = connect(world);
    const sender = client.createSender(QUEUE);
    const [late] = await sender.scheduleMessages({ body: "late" }, await fromNow(world, 10));
    const five = await fromNow(world, 5);
    const soon = await sender.scheduleMessages(
      ["soon-1", "cancelled-1", "soon-2", "cancelled-2", "cancelled-3"].map((body) => ({ body })),
      five,
    );
    assert.deepEqual([late, ...soon].map((number) => number.toNumber()), [1, 2, 3, 4, 5, 6]);
    await sender.sendMessages({ body: "plain", scheduledEnqueueTimeUtc: five });
    await sender.cancelScheduledMessages(soon[1]);
    await sender.cancelScheduledMessages(soon.slice(3));
    await refused("MessageNotFound", sender.cancelScheduledMessages(soon[1]));
    await refused("MessageNotFound", sender.cancelScheduledMessages([late, soon[3]]));
    const receiver = client.createReceiver(QUEUE);
    await nothingLeft(receiver);
    await world.ask("advance", { seconds: 300 });
    const messages = await receive(receiver, 3);
    assert.deepEqual(bodies(messages), ["soon-1", "soon-2", "plain"]);
    for (const message of messages) {
      assert.equal(message.enqueuedTimeUtc.getTime(), five.getTime());
      assert.ok(message.sequenceNumber.greaterThan(7), "a message that is enqueued gets a new number");
      await receiver.completeMessage(message);
    }
    await refused("MessageNotFound", sender.cancelScheduledMessages(soon[0]));
    await world.ask("advance", { seconds: 300 });
    assert.deepEqual(bodies(await receive(receiver, 1)), ["late"]);
    await nothingLeft(receiver);
  },

  async "deferred messages are fetched by number and settled"(world) {
    const client = connect(world);
    await send(client, "complete", "abandon", "defer", "dead-letter");
    const receiver = client.createReceiver(QUEUE);
    const numbers = [];
    for (const message of await receive(receiver, 4)) {
      await receiver.deferMessage(message);
      numbers.push(message.sequenceNumber);
    }
    const [letter, defer, abandon, complete] = await receiver.receiveDeferredMessages([...numbers].reverse());
    assert.deepEqual(bodies([letter, defer, abandon, complete]), ["dead-letter", "defer", "abandon", "complete"]);
    assert.equal(letter.state, "deferred");
    assert.equal(letter.lockedUntilUtc.getTime(), (await fromNow(world, 1)).getTime());
    await refused("MessageNotFound", receiver.receiveDeferredMessages(numbers[0]));
    await world.ask("advance", { seconds: 40 });
    await receiver.renewMessageLock(defer);
    await receiver.deadLetterMessage(letter, { deadLetterReason: "a reason", extra: 7 });
    await receiver.abandonMessage(abandon, { tried: true });
    await receiver.completeMessage(complete);
    await world.ask("advance", { seconds: 40 });
    await receiver.deferMessage(defer, { postponed: true });
    assert.deepEqual(await states(receiver), { abandon: "deferred", defer: "deferred" });
    const again = await receiver.receiveDeferredMessages(numbers.slice(1, 3));
    assert.deepEqual(again.map((message) => message.applicationProperties), [{ tried: true }, { postponed: true }]);
    await world.ask("advance", { seconds: 61 });
    await refused("MessageLockLost", receiver.completeMessage(again[0]));
    const deleting = client.createReceiver(QUEUE, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await deleting.receiveDeferredMessages(numbers.slice(1, 3))), ["abandon", "defer"]);
    await refused("MessageNotFound", deleting.receiveDeferredMessages(numbers[1]));
    const letters = client.createReceiver(QUEUE, { subQueueType: "deadLetter" });
    const [dead] = await receive(letters, 1);
    assert.equal(dead.deadLetterReason, "a reason");
    assert.equal(dead.applicationProperties.extra, 7);
    assert.deepEqual(await world.ask("counters"), { active: 0, deferred: 0 });
  },

  async "a session's messages come in order and are settled"(world) {
    const client = connect(world);
    await sendToSessions(client, ["s", "m1"], ["other", "m2"], ["s", "m3"], ["s", "m4"], ["s", "m5"]);
    const receiver = await client.acceptSession(SESSIONS, "s");
    assert.equal(receiver.sessionId, "s");
    assert.equal(receiver.sessionLockedUntilUtc.getTime(), (await fromNow(world, 1)).getTime());
    const [one, three, four] = await receive(receiver, 3);
    assert.deepEqual(bodies([one, three, four]), ["m1", "m3", "m4"]);
    assert.equal(one.sessionId, "s");
    await receiver.completeMessage(one);
    await receiver.abandonMessage(three);
    await receiver.deadLetterMessage(four, { deadLetterReason: "a reason" });
    const rest = await receive(receiver, 2);
    assert.deepEqual(bodies(rest), ["m3", "m5"]);
    for (const message of rest) await receiver.completeMessage(message);
    await nothingLeft(receiver);
    const letters = client.createReceiver(SESSIONS, { subQueueType: "deadLetter" });
    const [dead] = await receive(letters, 1);
    assert.deepEqual([dead.body, dead.sessionId, dead.deadLetterReason], ["m4", "s", "a reason"]);
    await letters.completeMessage(dead);
    assert.deepEqual(await world.ask("counters", { queue: SESSIONS }), { active: 1, deferred: 0 });
  },

  async "the next session is found or waited for, and a held one is nobody else's"(world) {
    const client = connect(world);
    await sendToSessions(client, ["a", "a1"], ["b", "b1"]);
    const [one, two] = [await client.acceptNextSession(SESSIONS), await client.acceptNextSession(SESSIONS)];
    assert.deepEqual([one.sessionId, two.sessionId], ["a", "b"]);
    assert.deepEqual(bodies([...(await receive(two, 1)), ...(await receive(one, 1))]), ["b1", "a1"]);
    await refused("SessionCannotBeLocked", client.acceptSession(SESSIONS, "a"));
    const waiting = client.acceptNextSession(SESSIONS);
    await world.ask("waiter");
    await sendToSessions(client, ["c", "c1"]);
    const three = await waiting;
    assert.equal(three.sessionId, "c");
    const inVain = client.acceptNextSession(SESSIONS);
    await world.ask("waiter");
    await Promise.all([refused("ServiceTimeout", inVain), world.ask("advance", { seconds: 6 })]);
    await one.close();
    const again = await client.acceptNextSession(SESSIONS);
    assert.equal(again.sessionId, "a");
    assert.equal((await receive(again, 1))[0].deliveryCount, 0);
  },

  async "the state of a session is kept until it is cleared"(world) {
    const client = connect(world);
    const receiver = await client.acceptSession(SESSIONS, "s");
    assert.equal(await receiver.getSessionState(), null);
    const state = { step: 3, names: ["a", "ü"] };
    await receiver.setSessionState(state);
    assert.deepEqual(await receiver.getSessionState(), state);
    await receiver.close();
    const other = await client.acceptSession(SESSIONS, "other");
    assert.equal(await other.getSessionState(), null);
    const again = await client.acceptSession(SESSIONS, "s");
    assert.deepEqual(await again.getSessionState(), state);
    await again.setSessionState(null);
    assert.equal(await again.getSessionState(), null);
  },

  async "a session is held by renewing its lock and lost without"(world) {
    const client = connect(world);
    await sendToSessions(client, ["s", "m1"], ["s", "m2"]);
    const receiver = await client.acceptSession(SESSIONS, "s", { maxAutoLockRenewalDurationInMs: 0 });
    const [one, two] = await receive(receiver, 2);
    await world.ask("advance", { seconds: 40 });
    const until = await receiver.renewSessionLock();
    assert.equal(until.getTime(), (await fromNow(world, 1)).getTime());
    assert.equal(receiver.sessionLockedUntilUtc.getTime(), until.getTime());
    await world.ask("advance", { seconds: 40 });
    await receiver.completeMessage(one);
    await world.ask("advance", { seconds: 61 });
    await refused("SessionLockLost", receiver.completeMessage(two));
    await refused("SessionLockLost", receiver.renewSessionLock());
    const again = await client.acceptSession(SESSIONS, "s");
    const [message] = await receive(again, 1);
    assert.deepEqual([message.body, message.deliveryCount], ["m2", 1]);
    await again.completeMessage(message);
  },

  async "messages of a session are peeked, deferred and scheduled"(world) {
    const client = connect(world);
    await sendToSessions(client, ["s", "m1"], ["other", "m2"], ["s", "m3"]);
    const sender = client.createSender(SESSIONS);
    await sender.scheduleMessages([{ body: "m4", sessionId: "s" }], await fromNow(world, 0.5));
    const receiver = await client.acceptSession(SESSIONS, "s", { maxAutoLockRenewalDurationInMs: 0 });
    assert.deepEqual(bodies(await receiver.peekMessages(2)), ["m1", "m3"]);
    assert.deepEqual(bodies(await receiver.peekMessages(2)), ["m4"]);
    const [one] = await receive(receiver, 1);
    await receiver.deferMessage(one);
    assert.deepEqual(await states(receiver), { m1: "deferred", m3: "active", m4: "scheduled" });
    const other = await client.acceptSession(SESSIONS, "other");
    await refused("MessageNotFound", other.receiveDeferredMessages(one.sequenceNumber));
    await world.ask("advance", { seconds: 30 });
    const rest = await receive(receiver, 2);
    assert.deepEqual(bodies(rest), ["m3", "m4"]);
    const [fetched] = await receiver.receiveDeferredMessages([one.sequenceNumber]);
    assert.equal(fetched.body, "m1");
    for (const message of [fetched, ...rest]) await receiver.completeMessage(message);
    assert.deepEqual(await world.ask("counters", { queue: SESSIONS }), { active: 1, deferred: 0 });
  },

  async "a subscriber gets the messages of its session in order"(world) {
    const client = connect(world);
    const receiver = await client.acceptSession(SESSIONS, "s", { maxAutoLockRenewalDurationInMs: 0 });
    const seen = [];
    const failures = [];
    let enough;
    const all = new Promise((resolve) => (enough = resolve));
    receiver.subscribe({
      async processMessage(message) {
        seen.push(message.body);
        if (seen.length === 10) enough();
      },
      async processError({ error }) {
        failures.push(error);
        enough();
      },
    });
    const numbers = Array.from({ length: 10 }, (_, number) => number);
    await sendToSessions(client, ...numbers.map((number) => ["s", number]));
    await all;
    // The SDK completes a message after its handler has returned.
    while ((await world.ask("counters", { queue: SESSIONS })).active && !failures.length);
    // It asks for the next message then, and calls it a failure when it finds its own link closed.
    assert.deepEqual(failures, []);
    await receiver.close();
    assert.deepEqual(seen, numbers);
  },

  async "received and deleted messages of a session are gone"(world) {
    const client = connect(world);
    await sendToSessions(client, ["s", "a"], ["other", "b"], ["s", "c"]);
    const receiver = await client.acceptSession(SESSIONS, "s", { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 2)), ["a", "c"]);
    assert.deepEqual(await world.ask("counters", { queue: SESSIONS }), { active: 1, deferred: 0 });
  },

  async "client, sender and receiver find the broker again after a restart"(world) {
    const patient = { maxRetries: 10, retryDelayInMs: 100, timeoutInMs: 5_000 };
    const client = connect(world, { retryOptions: patient });
    const sender = client.createSender(QUEUE);
    const receiver = client.createReceiver(QUEUE);
    await sender.sendMessages({ body: "before" });
    await world.ask("restart", { how: "stop" });
    await sender.sendMessages({ body: "after" });
    const first = await receive(receiver, 2);
    assert.deepEqual(first.map((message) => message.body), ["before", "after"]);
    await world.ask("restart", { how: "kill" });
    const again = await receive(receiver, 2, 20_000);
    assert.deepEqual(again.map((message) => message.sequenceNumber.toNumber()), [1, 2]);
    for (const message of again) await receiver.completeMessage(message);
    await nothingLeft(receiver);
  },
};
