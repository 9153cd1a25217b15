// What scenarios do again and again: make messages, receive as many as there must be, compare, be refused.

import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.util.BinaryData;
import com.azure.core.util.IterableStream;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;

abstract class Steps {
    private static final Duration WAIT = Duration.ofSeconds(20);

    static ServiceBusMessage message(String body) {
        return new ServiceBusMessage(BinaryData.fromString(body));
    }

    static ServiceBusMessage message(String body, Map<String, Object> properties) {
        ServiceBusMessage message = message(body);
        message.getApplicationProperties().putAll(properties);
        return message;
    }

    /** The broker's connection string with another key. */
    static String withKey(World world, String name, String key) {
        return world.connectionString().replaceFirst(
            "SharedAccessKeyName=[^;]+;SharedAccessKey=[^;]+",
            "SharedAccessKeyName=" + name + ";SharedAccessKey=" + key);
    }

    static OffsetDateTime in(World world, int seconds) throws Exception {
        return OffsetDateTime.ofInstant(Instant.ofEpochMilli(world.now() + seconds * 1000L), ZoneOffset.UTC);
    }

    static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return receive(receiver, 1).get(0);
    }

    static List<ServiceBusReceivedMessage> receive(ServiceBusReceiverClient receiver, int count) {
        List<ServiceBusReceivedMessage> got = new ArrayList<>();
        while (got.size() < count) {
            IterableStream<ServiceBusReceivedMessage> more = receiver.receiveMessages(count - got.size(), WAIT);
            int before = got.size();
            more.forEach(got::add);
            if (got.size() == before) {
                throw new AssertionError("only " + before + " of " + count + " messages came");
            }
        }
        return got;
    }

    /** Receives and completes that many messages; returns their bodies. */
    static List<String> take(ServiceBusReceiverClient receiver, int count) {
        List<String> bodies = new ArrayList<>();
        for (ServiceBusReceivedMessage got : receive(receiver, count)) {
            receiver.complete(got);
            bodies.add(got.getBody().toString());
        }
        return bodies;
    }

    interface Action {
        void run() throws Exception;
    }

    static ServiceBusException refusal(Action action) throws Exception {
        return thrown(ServiceBusException.class, action);
    }

    /** Receivers wrap what the broker said. */
    static AmqpException refusedReceiving(ServiceBusReceiverClient receiver) throws Exception {
        return thrown(AmqpException.class, () -> one(receiver));
    }

    /** What the action throws, or the first cause of it that is of this kind. */
    static <T extends Exception> T thrown(Class<T> kind, Action action) throws Exception {
        try {
            action.run();
        } catch (Exception refused) {
            for (Throwable cause = refused; cause != null; cause = cause.getCause()) {
                if (kind.isInstance(cause)) {
                    return kind.cast(cause);
                }
            }
            throw refused;
        }
        throw new AssertionError("it was not refused");
    }

    static <T> T only(Iterable<T> listed) {
        List<T> all = new ArrayList<>();
        listed.forEach(all::add);
        equal(1, all.size());
        return all.get(0);
    }

    static <T> List<String> names(Iterable<T> listed, Function<T, String> name) {
        List<String> all = new ArrayList<>();
        listed.forEach(each -> all.add(name.apply(each)));
        return all;
    }

    static void equal(Object wanted, Object found) {
        if (!Objects.equals(wanted, found)) {
            throw new AssertionError("expected " + wanted + ", found " + found);
        }
    }

    static void contains(String wanted, String found) {
        if (!found.contains(wanted)) {
            throw new AssertionError("expected " + wanted + " in: " + found);
        }
    }
}
