// How messages, rules, moments and errors of the SDK are told in JSON, and the other way.

import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.RuleFilter;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.HashMap;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

final class Said {
    private static final Map<ServiceBusFailureReason, String> REASONS = Map.of(
        ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, "not-found",
        ServiceBusFailureReason.MESSAGING_ENTITY_DISABLED, "disabled",
        ServiceBusFailureReason.MESSAGE_NOT_FOUND, "message-not-found",
        ServiceBusFailureReason.MESSAGE_LOCK_LOST, "lock-lost",
        ServiceBusFailureReason.SESSION_LOCK_LOST, "session-lock-lost",
        ServiceBusFailureReason.SESSION_CANNOT_BE_LOCKED, "session-taken",
        ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED, "too-large",
        ServiceBusFailureReason.SERVICE_TIMEOUT, "timeout",
        ServiceBusFailureReason.UNAUTHORIZED, "unauthorized",
        ServiceBusFailureReason.QUOTA_EXCEEDED, "quota");
    /** Receivers do not always have a reason. */
    private static final Map<String, String> CONDITIONS = Map.of(
        "amqp:not-found", "not-found",
        "amqp:unauthorized-access", "unauthorized",
        "amqp:link:message-size-exceeded", "too-large",
        "com.microsoft:entity-disabled", "disabled",
        "com.microsoft:message-not-found", "message-not-found",
        "com.microsoft:message-lock-lost", "lock-lost",
        "com.microsoft:session-lock-lost", "session-lock-lost",
        "com.microsoft:session-cannot-be-locked", "session-taken",
        "com.microsoft:timeout", "timeout");
    private static final Map<Integer, String> STATUSES =
        Map.of(400, "bad-request", 401, "unauthorized", 404, "not-found", 409, "exists", 412, "modified");

    private Said() {}

    static Map<String, Object> error(Throwable failure) {
        StringWriter trace = new StringWriter();
        failure.printStackTrace(new PrintWriter(trace));
        String kind = null;
        StringJoiner text = new StringJoiner("; ");
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            kind = kind == null ? kind(cause) : kind;
            text.add(String.valueOf(cause.getMessage()));
        }
        return Map.of("kind", kind == null ? failure.getClass().getSimpleName() : kind,
            "text", text.toString(), "trace", trace.toString());
    }

    private static String kind(Throwable failure) {
        if (failure instanceof ServiceBusException known) {
            return REASONS.get(known.getReason());
        }
        if (failure instanceof AmqpException known && known.getErrorCondition() != null) {
            return CONDITIONS.get(known.getErrorCondition().getErrorCondition());
        }
        if (failure instanceof HttpResponseException known && known.getResponse() != null) {
            return STATUSES.get(known.getResponse().getStatusCode());
        }
        return failure instanceof TimeoutException ? "timeout" : null;
    }

    // --- small things ---

    static boolean has(JsonNode asked, String word) {
        return asked.hasNonNull(word);
    }

    static String text(JsonNode asked, String word) {
        return has(asked, word) ? asked.get(word).asText() : null;
    }

    static Duration seconds(JsonNode seconds) {
        return Duration.ofMillis(Math.round(seconds.asDouble() * 1000));
    }

    static OffsetDateTime moment(long milliseconds) {
        return OffsetDateTime.ofInstant(Instant.ofEpochMilli(milliseconds), ZoneOffset.UTC);
    }

    static Long milliseconds(OffsetDateTime moment) {
        return moment == null ? null : moment.toInstant().toEpochMilli();
    }

    static Map<String, Object> properties(JsonNode said) {
        if (said == null || said.isNull()) {
            return null;
        }
        Map<String, Object> properties = new HashMap<>();
        said.fields().forEachRemaining(field -> properties.put(field.getKey(), value(field.getValue())));
        return properties;
    }

    private static Object value(JsonNode said) {
        if (said.isIntegralNumber()) {
            return said.asLong();
        }
        if (said.isNumber()) {
            return said.asDouble();
        }
        return said.isBoolean() ? said.asBoolean() : said.asText();
    }

    private static void give(JsonNode said, String word, Consumer<String> setter) {
        if (has(said, word)) {
            setter.accept(said.get(word).asText());
        }
    }

    // --- messages ---

    static ServiceBusMessage message(JsonNode said) {
        String body = said.has("size") ? "x".repeat(said.get("size").asInt()) : said.get("body").asText();
        ServiceBusMessage message = new ServiceBusMessage(BinaryData.fromString(body));
        give(said, "id", message::setMessageId);
        give(said, "session", message::setSessionId);
        give(said, "subject", message::setSubject);
        give(said, "correlation", message::setCorrelationId);
        give(said, "content_type", message::setContentType);
        give(said, "to", message::setTo);
        give(said, "reply_to", message::setReplyTo);
        give(said, "reply_session", message::setReplyToSessionId);
        give(said, "partition", message::setPartitionKey);
        if (has(said, "ttl")) {
            message.setTimeToLive(Duration.ofMillis(said.get("ttl").asLong()));
        }
        if (has(said, "at")) {
            message.setScheduledEnqueueTime(moment(said.get("at").asLong()));
        }
        if (has(said, "properties")) {
            message.getApplicationProperties().putAll(properties(said.get("properties")));
        }
        return message;
    }

    static Map<String, Object> message(ServiceBusReceivedMessage message, String handle) {
        Map<String, Object> told = new HashMap<>();
        told.put("handle", handle);
        told.put("body", message.getBody().toString());
        told.put("properties", message.getApplicationProperties());
        told.put("id", message.getMessageId());
        told.put("session", message.getSessionId());
        told.put("subject", message.getSubject());
        told.put("correlation", message.getCorrelationId());
        told.put("content_type", message.getContentType());
        told.put("to", message.getTo());
        told.put("reply_to", message.getReplyTo());
        told.put("reply_session", message.getReplyToSessionId());
        told.put("partition", message.getPartitionKey());
        told.put("sequence", message.getSequenceNumber());
        told.put("delivery_count", message.getDeliveryCount());
        told.put("state", message.getState() == null ? null : message.getState().toString().toLowerCase());
        told.put("enqueued", milliseconds(message.getEnqueuedTime()));
        told.put("scheduled", milliseconds(message.getScheduledEnqueueTime()));
        told.put("locked_until", milliseconds(message.getLockedUntil()));
        told.put("expires", milliseconds(message.getExpiresAt()));
        told.put("reason", message.getDeadLetterReason());
        told.put("description", message.getDeadLetterErrorDescription());
        told.put("source", message.getDeadLetterSource());
        return told;
    }

    // --- rules ---

    static CreateRuleOptions rule(JsonNode said) {
        CreateRuleOptions options = new CreateRuleOptions(filter(said.get("filter")));
        give(said, "action", action -> options.setAction(new SqlRuleAction(action)));
        return options;
    }

    static RuleFilter filter(JsonNode said) {
        if (has(said, "sql")) {
            return new SqlRuleFilter(said.get("sql").asText());
        }
        if (has(said, "true")) {
            return new TrueRuleFilter();
        }
        if (has(said, "false")) {
            return new FalseRuleFilter();
        }
        JsonNode tested = said.get("correlation");
        CorrelationRuleFilter filter = new CorrelationRuleFilter();
        give(tested, "subject", filter::setLabel);
        give(tested, "correlation", filter::setCorrelationId);
        give(tested, "id", filter::setMessageId);
        if (has(tested, "properties")) {
            filter.getProperties().putAll(properties(tested.get("properties")));
        }
        return filter;
    }

    static Map<String, Object> rule(RuleProperties rule) {
        Map<String, Object> told = new HashMap<>();
        told.put("name", rule.getName());
        told.put("filter", filter(rule.getFilter()));
        told.put("action", rule.getAction() instanceof SqlRuleAction action ? action.getSqlExpression() : null);
        return told;
    }

    private static Map<String, Object> filter(RuleFilter filter) {
        // Those for all and for nothing are kinds of SQL filters.
        if (filter instanceof TrueRuleFilter) {
            return Map.of("true", true);
        }
        if (filter instanceof FalseRuleFilter) {
            return Map.of("false", true);
        }
        if (filter instanceof SqlRuleFilter sql) {
            return Map.of("sql", sql.getSqlExpression());
        }
        CorrelationRuleFilter found = (CorrelationRuleFilter) filter;
        Map<String, Object> tested = new HashMap<>();
        tested.put("subject", found.getLabel());
        tested.put("correlation", found.getCorrelationId());
        tested.put("id", found.getMessageId());
        tested.put("properties", found.getProperties());
        return Map.of("correlation", tested);
    }
}
