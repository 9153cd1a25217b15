// What the scenarios share. Each gets a `world`: the connection strings of the running broker, `ask` for what only the
// test can do, and `opened`, the clients that the runner closes afterwards.
import assert from "node:assert/strict";
import { ServiceBusAdministrationClient, ServiceBusClient, isServiceBusError } from "@azure/service-bus";
import Long from "long";

const SHORT = { maxRetries: 0, retryDelayInMs: 10, timeoutInMs: 5_000 };

export function connect(world, options = {}, connectionString = world.brokers.plain) {
  const client = new ServiceBusClient(connectionString, { retryOptions: SHORT, ...options });
  world.opened.push(client);
  return client;
}

// Over TLS for every connection string: this SDK supports nothing else.
export function administer(world, options = {}, connectionString = world.brokers.plain) {
  return new ServiceBusAdministrationClient(connectionString, { retryOptions: { maxRetries: 0 }, ...options });
}

export async function sendTo(client, entity, ...messages) {
  const sender = client.createSender(entity);
  for (const message of messages) await sender.sendMessages(message instanceof Object ? message : { body: message });
  await sender.close();
}

// Exactly that many messages, however the SDK cuts them into batches.
export async function receive(receiver, count, maxWaitTimeInMs = 5_000) {
  const found = [];
  while (found.length < count) {
    const batch = await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs });
    assert.ok(batch.length, `only ${found.length} of ${count} messages came`);
    found.push(...batch);
  }
  return found;
}

export async function nothingLeft(receiver) {
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
}

export async function peekAll(receiver) {
  return receiver.peekMessages(100, { fromSequenceNumber: Long.ONE });
}

// What the queue holds, by body.
export async function states(receiver) {
  return Object.fromEntries((await peekAll(receiver)).map((message) => [message.body, message.state]));
}

export function bodies(messages) {
  return messages.map((message) => message.body);
}

export async function fromNow(world, minutes) {
  return new Date((await world.ask("now")) + minutes * 60_000);
}

// The work fails, and the SDK knows why.
export async function refused(code, work, words = /./) {
  await assert.rejects(work, (error) => {
    assert.ok(isServiceBusError(error), String(error?.stack ?? error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, words);
    return true;
  });
}

// The same of an administration client, whose errors are others.
export async function restRefused(code, statusCode, work, words = /./) {
  await assert.rejects(work, (error) => {
    assert.equal(error.name, "RestError", String(error?.stack ?? error));
    assert.deepEqual([error.code, error.statusCode], [code, statusCode], error.message);
    assert.match(error.message, words);
    return true;
  });
}

export async function collect(iterator) {
  const found = [];
  for await (const each of iterator) found.push(each);
  return found;
}
