// Executes the commands of conformance/program.py with @azure/service-bus.
import { isServiceBusError } from "@azure/service-bus";
import Long from "long";
import WebSocket from "ws";
import { administer, collect, connect } from "./world.mjs";

const KINDS = {
  MessagingEntityNotFound: "not-found",
  MessagingEntityDisabled: "disabled",
  MessageNotFound: "message-not-found",
  MessageLockLost: "lock-lost",
  SessionLockLost: "session-lock-lost",
  SessionCannotBeLocked: "session-taken",
  MessageSizeExceeded: "too-large",
  ServiceTimeout: "timeout",
  UnauthorizedAccess: "unauthorized",
  QuotaExceeded: "quota",
};
const STATUSES = { 400: "bad-request", 401: "unauthorized", 404: "not-found", 409: "exists", 412: "modified" };

const TEXTS = {
  id: "messageId",
  session: "sessionId",
  subject: "subject",
  correlation: "correlationId",
  content_type: "contentType",
  to: "to",
  reply_to: "replyTo",
  reply_session: "replyToSessionId",
  partition: "partitionKey",
};

const SETTINGS = {
  lock_ms: "lockDuration",
  max_delivery: "maxDeliveryCount",
  ttl_ms: "defaultMessageTimeToLive",
  sessions: "requiresSession",
  duplicates: "requiresDuplicateDetection",
  window_ms: "duplicateDetectionHistoryTimeWindow",
  dead_letter_expired: "deadLetteringOnMessageExpiration",
  forward_to: "forwardTo",
  forward_dead_to: "forwardDeadLetteredMessagesTo",
  status: "status",
  metadata: "userMetadata",
};

const COUNTS = {
  active: "activeMessageCount",
  dead: "deadLetterMessageCount",
  scheduled: "scheduledMessageCount",
  transfer_dead: "transferDeadLetterMessageCount",
  total: "totalMessageCount",
  subscriptions: "subscriptionCount",
  size: "sizeInBytes",
};

// What was opened or received, by handle.
let kept = new Map();
let opened = [];
let last = 0;

function keep(thing) {
  const handle = `h${++last}`;
  kept.set(handle, thing);
  return handle;
}

export function errorOf(error) {
  const code = isServiceBusError(error) ? KINDS[error.code] : STATUSES[error?.statusCode];
  const kind = String(code ?? error?.code ?? error?.name ?? "Error");
  return { kind, text: String(error?.message ?? error), trace: String(error?.stack ?? "") };
}

// --- in and out ---

function messageFrom(told) {
  const message = { body: "size" in told ? Buffer.alloc(told.size, "x") : Buffer.from(told.body) };
  for (const [word, name] of Object.entries(TEXTS)) if (word in told) message[name] = told[word];
  if ("ttl" in told) message.timeToLive = told.ttl;
  if ("at" in told) message.scheduledEnqueueTimeUtc = new Date(told.at);
  if (told.properties) message.applicationProperties = told.properties;
  return message;
}

function messageTo(message) {
  const told = { handle: keep(message) };
  for (const [word, name] of Object.entries(TEXTS)) told[word] = message[name] ?? null;
  return {
    ...told,
    body: message.body.toString(),
    properties: message.applicationProperties ?? {},
    sequence: message.sequenceNumber.toNumber(),
    delivery_count: message.deliveryCount,
    state: message.state,
    enqueued: message.enqueuedTimeUtc?.getTime() ?? null,
    scheduled: message.scheduledEnqueueTimeUtc?.getTime() ?? null,
    locked_until: message.lockedUntilUtc?.getTime() ?? null,
    expires: message.expiresAtUtc?.getTime() ?? null,
    reason: message.deadLetterReason ?? null,
    description: message.deadLetterErrorDescription ?? null,
    source: message.deadLetterSource ?? null,
  };
}

function settingsFrom(told) {
  const isDuration = (word) => word.endsWith("_ms");
  const value = (word, said) => (isDuration(word) ? `PT${said / 1000}S` : said);
  return Object.fromEntries(Object.entries(told).map(([word, said]) => [SETTINGS[word], value(word, said)]));
}

function settingsTo(found) {
  const value = (word) => {
    const said = found[SETTINGS[word]] ?? null;
    return word.endsWith("_ms") ? milliseconds(said) : said;
  };
  return Object.fromEntries(Object.keys(SETTINGS).map((word) => [word, value(word)]));
}

function milliseconds(duration) {
  if (!duration) return null;
  const [, days, hours, minutes, seconds] = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/.exec(duration);
  const whole = ((Number(days ?? 0) * 24 + Number(hours ?? 0)) * 60 + Number(minutes ?? 0)) * 60;
  return Math.round((whole + Number(seconds ?? 0)) * 1000);
}

function filterFrom({ sql, correlation, true: all }) {
  if (sql) return { sqlExpression: sql };
  if (!correlation) return { sqlExpression: all ? "1=1" : "1=0" };
  const { subject, id, properties } = correlation;
  return { subject, messageId: id, correlationId: correlation.correlation, applicationProperties: properties };
}

// The SDK shows filters for all and for nothing as the SQL that they are.
function ruleTo({ name, filter, action }) {
  const tested = {
    subject: filter.subject ?? null,
    correlation: filter.correlationId ?? null,
    id: filter.messageId ?? null,
    properties: filter.applicationProperties ?? {},
  };
  const known = { "1=1": { true: true }, "1=0": { false: true } };
  const shown = filter.sqlExpression ? (known[filter.sqlExpression] ?? { sql: filter.sqlExpression }) : { correlation: tested };
  return { name, filter: shown, action: action?.sqlExpression || null };
}

// Something to wait in until so many are there: who is alone in a handler of several never gets out of it.
function meeting(size) {
  let waiting = [];
  return () =>
    new Promise((go) => {
      waiting.push(go);
      if (waiting.length < size) return;
      waiting.forEach((each) => each());
      waiting = [];
    });
}

const capital = (word) => word[0].toUpperCase() + word.slice(1);
const entityOf = (asked) => (asked.topic ? [asked.topic, asked.subscription] : [asked.queue]);

function receiverOptions(asked) {
  const parts = { dead: "deadLetter", transfer: "transferDeadLetter" };
  return {
    ...(asked.deletes ? { receiveMode: "receiveAndDelete" } : {}),
    ...(asked.part ? { subQueueType: parts[asked.part] } : {}),
  };
}

// --- what it can be told ---

export const calls = {
  async reset() {
    const closing = opened;
    [kept, opened] = [new Map(), []];
    const patience = new Promise((resolve) => setTimeout(resolve, 5_000).unref());
    await Promise.race([Promise.allSettled(closing.map((client) => client.close())), patience]);
  },

  async close({ handle }) {
    await kept.get(handle).close();
  },

  async open({ connection, transport, retries }) {
    const retryOptions = { maxRetries: retries, retryDelayInMs: 200, timeoutInMs: retries ? 5_000 : 20_000 };
    const webSocketOptions = transport === "websocket" ? { webSocket: WebSocket } : undefined;
    return keep(connect({ opened, brokers: {} }, { retryOptions, webSocketOptions }, connection));
  },

  // --- sending ---

  async sender({ client, queue, topic }) {
    return keep(kept.get(client).createSender(queue ?? topic));
  },

  async send({ sender, messages, batch }) {
    const to = kept.get(sender);
    if (!batch) {
      for (const message of messages) await to.sendMessages(messageFrom(message));
      return;
    }
    const filled = await to.createMessageBatch();
    for (const message of messages) if (!filled.tryAddMessage(messageFrom(message))) throw new Error("it does not fit");
    await to.sendMessages(filled);
  },

  async fill({ sender, size }) {
    const batch = await kept.get(sender).createMessageBatch();
    while (batch.tryAddMessage(messageFrom({ size })));
    await kept.get(sender).sendMessages(batch);
    return batch.count;
  },

  async schedule({ sender, messages, at }) {
    const numbers = await kept.get(sender).scheduleMessages(messages.map(messageFrom), new Date(at));
    return numbers.map((number) => number.toNumber());
  },

  async cancel({ sender, numbers }) {
    await kept.get(sender).cancelScheduledMessages(numbers.map((number) => Long.fromNumber(number)));
  },

  // --- receiving ---

  async receiver(asked) {
    return keep(kept.get(asked.client).createReceiver(...entityOf(asked), receiverOptions(asked)));
  },

  async accept(asked) {
    const client = kept.get(asked.client);
    const options = { ...receiverOptions(asked), maxAutoLockRenewalDurationInMs: 0 };
    const receiver =
      asked.session == null
        ? await client.acceptNextSession(...entityOf(asked), options)
        : await client.acceptSession(...entityOf(asked), asked.session, options);
    const until = receiver.sessionLockedUntilUtc?.getTime() ?? null;
    return { handle: keep(receiver), session: receiver.sessionId, until };
  },

  async receive({ receiver, count, wait }) {
    const messages = await kept.get(receiver).receiveMessages(count, { maxWaitTimeInMs: wait * 1000 });
    return messages.map(messageTo);
  },

  async deferred({ receiver, numbers }) {
    const asked = numbers.map((number) => Long.fromNumber(number));
    return (await kept.get(receiver).receiveDeferredMessages(asked)).map(messageTo);
  },

  async peek({ receiver, count, start }) {
    const from = start == null ? {} : { fromSequenceNumber: Long.fromNumber(start) };
    return (await kept.get(receiver).peekMessages(count, from)).map(messageTo);
  },

  async settle({ receiver, message, how, reason, description, properties }) {
    const [from, settled] = [kept.get(receiver), kept.get(message)];
    const why = { deadLetterReason: reason, deadLetterErrorDescription: description, ...properties };
    if (how === "dead_letter") await from.deadLetterMessage(settled, why);
    else await from[`${how}Message`](settled, properties ?? undefined);
  },

  async renew({ receiver, message }) {
    return (await kept.get(receiver).renewMessageLock(kept.get(message))).getTime();
  },

  // --- sessions ---

  async state({ receiver }) {
    return (await kept.get(receiver).getSessionState()) ?? null;
  },

  async set_state({ receiver, state }) {
    await kept.get(receiver).setSessionState(state);
  },

  async renew_session({ receiver }) {
    return (await kept.get(receiver).renewSessionLock()).getTime();
  },

  // --- receiving as it comes ---

  async process(asked) {
    const client = kept.get(asked.client);
    const maxAutoLockRenewalDurationInMs = asked.renew ? 60_000 : 0;
    const receiver = asked.session
      ? await client.acceptSession(...entityOf(asked), asked.session, { maxAutoLockRenewalDurationInMs })
      : client.createReceiver(...entityOf(asked), { maxAutoLockRenewalDurationInMs });
    const handled = [];
    const failures = [];
    let enough;
    const all = new Promise((resolve) => (enough = resolve));
    const together = meeting(asked.concurrent ?? 1);
    const subscription = receiver.subscribe(
      {
        async processMessage(message) {
          handled.push(messageTo(message));
          await together();
          await new Promise((resolve) => setTimeout(resolve, (asked.work ?? 0) * 1000));
          if (asked.fails && message.deliveryCount === 0) throw new Error("on purpose");
          if (handled.length >= asked.count) setTimeout(enough, 300);
        },
        async processError({ error, errorSource }) {
          if (asked.fails && errorSource === "processMessageCallback") return;
          failures.push(error);
          enough();
        },
      },
      asked.session ? {} : { maxConcurrentCalls: asked.concurrent ?? 1 },
    );
    await all;
    if (failures.length) throw failures[0];
    await subscription.close();
    await receiver.close();
    return handled;
  },

  // --- rules by the messaging client ---

  async add_rule({ client, topic, subscription, name, filter, action }) {
    const manager = kept.get(client).createRuleManager(topic, subscription);
    await manager.createRule(name, filterFrom(filter), action ? { sqlExpression: action } : undefined);
  },

  async rules({ client, topic, subscription }) {
    const manager = kept.get(client).createRuleManager(topic, subscription);
    return (await collect(manager.listRules())).map(ruleTo);
  },

  async remove_rule({ client, topic, subscription, name }) {
    const manager = kept.get(client).createRuleManager(topic, subscription);
    await manager.deleteRule(name);
  },

  // --- administration ---

  async administer({ connection }) {
    return keep(administer({}, {}, connection));
  },

  async create({ administrator, kind, path, settings }) {
    const client = kept.get(administrator);
    if (kind !== "rule") return settingsTo(await client[`create${capital(kind)}`](...path, settingsFrom(settings)));
    const action = settings.action ? { sqlExpression: settings.action } : undefined;
    return ruleTo(await client.createRule(...path, filterFrom(settings.filter), action));
  },

  async get({ administrator, kind, path }) {
    const found = await kept.get(administrator)[`get${capital(kind)}`](...path);
    return kind === "rule" ? ruleTo(found) : settingsTo(found);
  },

  async update({ administrator, kind, path, settings }) {
    const client = kept.get(administrator);
    const found = await client[`get${capital(kind)}`](...path);
    if (kind !== "rule") return settingsTo(await client[`update${capital(kind)}`]({ ...found, ...settingsFrom(settings) }));
    const action = settings.action ? { sqlExpression: settings.action } : undefined;
    return ruleTo(await client.updateRule(...path.slice(0, -1), { ...found, filter: filterFrom(settings.filter), action }));
  },

  async delete({ administrator, kind, path }) {
    await kept.get(administrator)[`delete${capital(kind)}`](...path);
  },

  async names({ administrator, kind, path }) {
    const found = await collect(kept.get(administrator)[`list${capital(kind)}s`](...path));
    return found.map((each) => (kind === "subscription" ? each.subscriptionName : each.name));
  },

  async counts({ administrator, kind, path }) {
    const found = await kept.get(administrator)[`get${capital(kind)}RuntimeProperties`](...path);
    return Object.fromEntries(Object.entries(COUNTS).map(([word, name]) => [word, found[name] ?? null]));
  },

  async namespace({ administrator }) {
    return (await kept.get(administrator).getNamespaceProperties()).name;
  },
};
