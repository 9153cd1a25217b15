// Change the rules of a subscription while messages flow: the rule manager needs the right to listen, not to manage.
// Needs: npm install @azure/service-bus
import { ServiceBusClient } from "@azure/service-bus";

const development =
  "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;" +
  "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;";
const client = new ServiceBusClient(process.env.SERVICEBUS_CONNECTION_STRING ?? development);

const rules = client.createRuleManager("topic", "subscription-1");
await rules.createRule("loud", { sqlExpression: "volume > 7" }, { sqlExpression: "SET volume = 7" });
await rules.deleteRule("$Default");
for await (const rule of rules.listRules()) {
  console.log(`${rule.name}: ${rule.filter.sqlExpression}, then ${rule.action.sqlExpression}`);
}

const sender = client.createSender("topic");
await sender.sendMessages([
  { body: "a whisper", applicationProperties: { volume: 1 } },
  { body: "a scream", applicationProperties: { volume: 11 } },
]);

for (const [subscription, count] of [["subscription-1", 1], ["subscription-2", 2]]) {
  const receiver = client.createReceiver("topic", subscription, { receiveMode: "receiveAndDelete" });
  for (let left = count; left > 0; left--) {
    const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 5000 });
    const { volume, RuleName } = message.applicationProperties;
    console.log(`${subscription} got ${message.body} at ${volume}${RuleName ? ` by the rule ${RuleName}` : ""}`);
  }
}

await rules.createRule("$Default", { sqlExpression: "1=1" });
await rules.deleteRule("loud");
await client.close();
