// Send a message to a queue, receive it and complete it. Needs: npm install @azure/service-bus
import { ServiceBusClient } from "@azure/service-bus";

const development =
  "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;" +
  "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;";
const client = new ServiceBusClient(process.env.SERVICEBUS_CONNECTION_STRING ?? development);

const sender = client.createSender("queue");
await sender.sendMessages({ body: "Hello", subject: "greeting", applicationProperties: { n: 1 } });
console.log("sent");

const receiver = client.createReceiver("queue");
for (const message of await receiver.receiveMessages(1, { maxWaitTimeInMs: 5000 })) {
  console.log(`received ${message.body} with the subject ${message.subject}`);
  await receiver.completeMessage(message);
  console.log("completed");
}
await client.close();
