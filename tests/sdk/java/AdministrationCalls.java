// What an administration client is told to do. The classes for settings are many and alike, so that their methods are
// found by name.

import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EmptyRuleAction;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SubscriptionProperties;
import com.azure.messaging.servicebus.administration.models.TopicProperties;
import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

final class AdministrationCalls {
    private static final Map<String, String> SETTINGS = new HashMap<>();
    private static final Map<String, String> COUNTS = Map.of(
        "active", "ActiveMessageCount",
        "dead", "DeadLetterMessageCount",
        "scheduled", "ScheduledMessageCount",
        "transfer_dead", "TransferDeadLetterMessageCount",
        "total", "TotalMessageCount",
        "subscriptions", "SubscriptionCount",
        "size", "SizeInBytes");

    static {
        SETTINGS.put("lock_ms", "LockDuration");
        SETTINGS.put("max_delivery", "MaxDeliveryCount");
        SETTINGS.put("ttl_ms", "DefaultMessageTimeToLive");
        SETTINGS.put("sessions", "SessionRequired");
        SETTINGS.put("duplicates", "DuplicateDetectionRequired");
        SETTINGS.put("window_ms", "DuplicateDetectionHistoryTimeWindow");
        SETTINGS.put("dead_letter_expired", "DeadLetteringOnMessageExpiration");
        SETTINGS.put("forward_to", "ForwardTo");
        SETTINGS.put("forward_dead_to", "ForwardDeadLetteredMessagesTo");
        SETTINGS.put("status", "Status");
        SETTINGS.put("metadata", "UserMetadata");
    }

    private AdministrationCalls() {}

    static void addTo(Map<String, Calls.Call> known, Calls calls) {
        known.put("administer", asked -> calls.keep(new ServiceBusAdministrationClientBuilder()
            .connectionString(asked.get("connection").asText()).buildClient()));
        known.put("create", asked -> create(calls.of(asked, "administrator"), asked));
        known.put("get", asked -> get(calls.of(asked, "administrator"), asked));
        known.put("update", asked -> update(calls.of(asked, "administrator"), asked));
        known.put("delete", asked -> Calls.done(() -> delete(calls.of(asked, "administrator"), asked)));
        known.put("names", asked -> names(calls.of(asked, "administrator"), asked));
        known.put("counts", asked -> counts(calls.of(asked, "administrator"), asked));
        known.put("namespace", asked -> calls.<ServiceBusAdministrationClient>of(asked, "administrator")
            .getNamespaceProperties().getName());
    }

    private static Object create(ServiceBusAdministrationClient client, JsonNode asked) throws Exception {
        JsonNode said = asked.get("settings");
        return switch (asked.get("kind").asText()) {
            case "queue" -> settings(client.createQueue(part(asked, 0), with(said, new CreateQueueOptions())));
            case "topic" -> settings(client.createTopic(part(asked, 0), with(said, new CreateTopicOptions())));
            case "subscription" -> settings(client.createSubscription(
                part(asked, 0), part(asked, 1), with(said, new CreateSubscriptionOptions())));
            // Other than everywhere else, the rule comes before the subscription here.
            default -> Said.rule(client.createRule(part(asked, 0), part(asked, 2), part(asked, 1), Said.rule(said)));
        };
    }

    private static Object get(ServiceBusAdministrationClient client, JsonNode asked) throws Exception {
        Object found = find(client, asked);
        return found instanceof RuleProperties rule ? Said.rule(rule) : settings(found);
    }

    private static Object find(ServiceBusAdministrationClient client, JsonNode asked) {
        return switch (asked.get("kind").asText()) {
            case "queue" -> client.getQueue(part(asked, 0));
            case "topic" -> client.getTopic(part(asked, 0));
            case "subscription" -> client.getSubscription(part(asked, 0), part(asked, 1));
            default -> client.getRule(part(asked, 0), part(asked, 1), part(asked, 2));
        };
    }

    private static Object update(ServiceBusAdministrationClient client, JsonNode asked) throws Exception {
        Object found = find(client, asked);
        JsonNode said = asked.get("settings");
        if (found instanceof RuleProperties rule) {
            rule.setFilter(Said.filter(said.get("filter")));
            rule.setAction(Said.has(said, "action")
                ? new SqlRuleAction(said.get("action").asText()) : new EmptyRuleAction());
            return Said.rule(client.updateRule(part(asked, 0), part(asked, 1), rule));
        }
        with(said, found);
        if (found instanceof QueueProperties queue) {
            return settings(client.updateQueue(queue));
        }
        return found instanceof TopicProperties topic
            ? settings(client.updateTopic(topic)) : settings(client.updateSubscription((SubscriptionProperties) found));
    }

    private static void delete(ServiceBusAdministrationClient client, JsonNode asked) {
        switch (asked.get("kind").asText()) {
            case "queue" -> client.deleteQueue(part(asked, 0));
            case "topic" -> client.deleteTopic(part(asked, 0));
            case "subscription" -> client.deleteSubscription(part(asked, 0), part(asked, 1));
            default -> client.deleteRule(part(asked, 0), part(asked, 1), part(asked, 2));
        }
    }

    private static Object names(ServiceBusAdministrationClient client, JsonNode asked) {
        return switch (asked.get("kind").asText()) {
            case "queue" -> Steps.names(client.listQueues(), QueueProperties::getName);
            case "topic" -> Steps.names(client.listTopics(), TopicProperties::getName);
            case "subscription" -> Steps.names(
                client.listSubscriptions(part(asked, 0)), SubscriptionProperties::getSubscriptionName);
            default -> Steps.names(client.listRules(part(asked, 0), part(asked, 1)), RuleProperties::getName);
        };
    }

    private static Object counts(ServiceBusAdministrationClient client, JsonNode asked) throws Exception {
        Object found = switch (asked.get("kind").asText()) {
            case "queue" -> client.getQueueRuntimeProperties(part(asked, 0));
            case "topic" -> client.getTopicRuntimeProperties(part(asked, 0));
            default -> client.getSubscriptionRuntimeProperties(part(asked, 0), part(asked, 1));
        };
        Map<String, Object> told = new HashMap<>();
        for (Map.Entry<String, String> count : COUNTS.entrySet()) {
            told.put(count.getKey(), read(found, count.getValue()));
        }
        return told;
    }

    private static String part(JsonNode asked, int place) {
        return asked.get("path").get(place).asText();
    }

    // --- settings ---

    private static <T> T with(JsonNode said, T target) throws Exception {
        for (Map.Entry<String, String> setting : SETTINGS.entrySet()) {
            if (!Said.has(said, setting.getKey())) {
                continue;
            }
            JsonNode value = said.get(setting.getKey());
            for (Method method : target.getClass().getMethods()) {
                if (method.getName().equals("set" + setting.getValue()) && method.getParameterCount() == 1) {
                    call(method, target, valueOf(setting.getKey(), value));
                }
            }
        }
        return target;
    }

    private static Object valueOf(String word, JsonNode value) {
        if (word.endsWith("_ms")) {
            return Duration.ofMillis(value.asLong());
        }
        if (word.equals("status")) {
            return EntityStatus.fromString(value.asText());
        }
        if (value.isBoolean()) {
            return value.asBoolean();
        }
        return value.isInt() ? (Object) value.asInt() : value.asText();
    }

    private static Map<String, Object> settings(Object found) throws Exception {
        Map<String, Object> told = new HashMap<>();
        for (Map.Entry<String, String> setting : SETTINGS.entrySet()) {
            Object value = read(found, setting.getValue());
            if (value instanceof Duration duration) {
                value = duration.toMillis();
            }
            told.put(setting.getKey(), value instanceof EntityStatus status ? status.toString() : value);
        }
        return told;
    }

    private static Object read(Object found, String name) throws Exception {
        for (Method method : found.getClass().getMethods()) {
            if (method.getName().equals("get" + name) || method.getName().equals("is" + name)) {
                return call(method, found);
            }
        }
        return null;
    }

    private static Object call(Method method, Object target, Object... arguments) throws Exception {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException wrapped) {
            throw wrapped.getCause() instanceof Exception cause ? cause : wrapped;
        }
    }
}
