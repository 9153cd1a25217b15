// What an application does with rules through the rule manager of azure-messaging-servicebus, which speaks AMQP.
// Names begin with the verb of a sentence; test_java.py reads them from this text, and has the entities.

import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

final class RuleScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("create rules of every kind and list them", RuleScenarios::createAndList);
        ALL.put("create and delete rules that decide on the next message", RuleScenarios::decide);
        ALL.put("list more rules than a page holds", RuleScenarios::many);
        ALL.put("be refused a rule that is there, one that is not, and bad SQL", RuleScenarios::refused);
    }

    private RuleScenarios() {}

    private static void createAndList(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusRuleManagerClient manager = clients.rules("topic", "all");
            CorrelationRuleFilter correlation = new CorrelationRuleFilter("c").setLabel("l").setMessageId("m")
                .setTo("t").setReplyTo("r").setSessionId("s").setReplyToSessionId("rs").setContentType("ct");
            correlation.getProperties().put("text", "x");
            correlation.getProperties().put("number", 7);
            correlation.getProperties().put("real", 1.5);
            correlation.getProperties().put("yes", true);
            manager.createRule("correlation", new CreateRuleOptions(correlation));
            manager.createRule("sql", new CreateRuleOptions(new SqlRuleFilter("amount > 10"))
                .setAction(new SqlRuleAction("SET big = TRUE")));
            manager.createRule("true", new CreateRuleOptions(new TrueRuleFilter()));
            manager.createRule("false", new CreateRuleOptions(new FalseRuleFilter()));

            Map<String, RuleProperties> listed = list(manager);
            equal(List.of("$Default", "correlation", "sql", "true", "false"), List.copyOf(listed.keySet()));
            equal(TrueRuleFilter.class, listed.get("$Default").getFilter().getClass());
            equal(null, listed.get("$Default").getAction());
            // The SDK makes text of the values.
            correlation.getProperties().replaceAll((name, value) -> value.toString());
            equal(correlation, listed.get("correlation").getFilter());
            equal(new SqlRuleFilter("amount > 10"), listed.get("sql").getFilter());
            equal("SET big = TRUE", ((SqlRuleAction) listed.get("sql").getAction()).getSqlExpression());
            equal("1=1", ((SqlRuleFilter) listed.get("true").getFilter()).getSqlExpression());
            equal("1=0", ((SqlRuleFilter) listed.get("false").getFilter()).getSqlExpression());
        }
    }

    private static void decide(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusRuleManagerClient manager = clients.rules("topic", "all");
            ServiceBusSenderClient sender = clients.publisher("topic");
            ServiceBusReceiverClient receiver = clients.subscriber("topic", "all");
            manager.deleteRule("$Default");
            equal(Map.of(), list(manager));
            sender.sendMessage(message("for nobody"));
            equal(List.of(0L, 0L, 0L), world.counters("topic/subscriptions/all"));

            manager.createRule("blue", new CreateRuleOptions(new SqlRuleFilter("color = 'blue'")));
            CorrelationRuleFilter urgent = new CorrelationRuleFilter().setLabel("urgent");
            urgent.getProperties().put("level", 3);
            manager.createRule("urgent", new CreateRuleOptions(urgent).setAction(new SqlRuleAction("REMOVE level")));
            sender.sendMessage(message("green", Map.of("color", "green")));
            sender.sendMessage(message("blue", Map.of("color", "blue")));
            sender.sendMessage(message("urgent", Map.of("level", 3)).setSubject("urgent"));
            sender.sendMessage(message("not so urgent", Map.of("level", 2)).setSubject("urgent"));
            List<ServiceBusReceivedMessage> got = receive(receiver, 2);
            equal("blue", got.get(0).getBody().toString());
            equal(Map.of("color", "blue"), got.get(0).getApplicationProperties());
            equal("urgent", got.get(1).getBody().toString());
            equal(Map.of("RuleName", "urgent"), got.get(1).getApplicationProperties());
            equal(List.of(2L, 0L, 0L), world.counters("topic/subscriptions/all"));

            manager.deleteRule("BLUE");
            sender.sendMessage(message("blue", Map.of("color", "blue")));
            equal(List.of(2L, 0L, 0L), world.counters("topic/subscriptions/all"));
        }
    }

    private static void many(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusRuleManagerClient manager = clients.rules("topic", "all");
            for (int number = 0; number < 120; number++) {
                manager.createRule("rule-" + number, new CreateRuleOptions(new CorrelationRuleFilter("c" + number)));
            }
            Map<String, RuleProperties> listed = list(manager);
            equal(121, listed.size());
            equal(new CorrelationRuleFilter("c119"), listed.get("rule-119").getFilter());
        }
    }

    private static void refused(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusRuleManagerClient manager = clients.rules("topic", "red");
            equal(ServiceBusFailureReason.MESSAGING_ENTITY_ALREADY_EXISTS,
                refusal(() -> manager.createRule("RED", new CreateRuleOptions(new TrueRuleFilter()))).getReason());
            equal(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND,
                refusal(() -> manager.deleteRule("green")).getReason());
            for (CreateRuleOptions bad : List.of(
                new CreateRuleOptions(new SqlRuleFilter("color = ")),
                new CreateRuleOptions(new TrueRuleFilter()).setAction(new SqlRuleAction("SET")))) {
                AmqpException refused = thrown(AmqpException.class, () -> manager.createRule("bad", bad));
                equal("com.microsoft:argument-error", refused.getErrorCondition().getErrorCondition());
                equal(false, refused.isTransient());
            }
            equal(List.of("red"), List.copyOf(list(manager).keySet()));
            AmqpException nobody = thrown(AmqpException.class, () -> list(clients.rules("topic", "nobody")));
            equal("amqp:not-found", nobody.getErrorCondition().getErrorCondition());
        }
    }

    private static Map<String, RuleProperties> list(ServiceBusRuleManagerClient manager) {
        return manager.listRules().stream().collect(
            Collectors.toMap(RuleProperties::getName, rule -> rule, (one, other) -> one, LinkedHashMap::new));
    }
}
