// What scenarios do again and again: connect, send, receive as many as there must be, compare, be refused.

import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.qpid.jms.JmsConnectionFactory;

abstract class Steps {
    static final long WAIT = 20_000;
    private static final Pattern PARTS = Pattern.compile(
        "Endpoint=sb://([^;/]+)/?;.*SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+)");

    /** A connection that is started, with the client id unless it is null. */
    static Connection connect(World world, String clientId) throws JMSException {
        return connect(world, clientId, "");
    }

    /** With these options of the client, as the query of its address. */
    static Connection connect(World world, String clientId, String options) throws JMSException {
        Matcher parts = PARTS.matcher(world.connectionString());
        if (!parts.find()) {
            throw new AssertionError("the connection string has another form: " + world.connectionString());
        }
        JmsConnectionFactory factory =
            new JmsConnectionFactory(parts.group(2), parts.group(3), "amqp://" + parts.group(1) + options);
        Connection connection = factory.createConnection();
        try {
            if (clientId != null) {
                connection.setClientID(clientId);
            }
            connection.start();
        } catch (JMSException refused) {
            connection.close();
            throw refused;
        }
        return connection;
    }

    static Connection connect(World world) throws JMSException {
        return connect(world, null);
    }

    static Session session(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    static void send(Session session, Destination destination, String... texts) throws JMSException {
        MessageProducer producer = session.createProducer(destination);
        for (String text : texts) {
            producer.send(session.createTextMessage(text));
        }
        producer.close();
    }

    static Message next(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(WAIT);
        if (message == null) {
            throw new AssertionError("no message came");
        }
        return message;
    }

    static List<String> texts(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (int each = 0; each < count; each++) {
            texts.add(((TextMessage) next(consumer)).getText());
        }
        return texts;
    }

    interface Action {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** What the action throws. */
    static <T extends Exception> T thrown(Class<T> kind, Action action) throws Exception {
        try {
            action.run();
        } catch (Exception refused) {
            if (kind.isInstance(refused)) {
                return kind.cast(refused);
            }
            throw refused;
        }
        throw new AssertionError("it was not refused");
    }

    /** Waits for what the client is not told of. */
    static void until(Condition condition) throws Exception {
        long end = System.nanoTime() + WAIT * 1_000_000;
        while (!condition.holds()) {
            if (System.nanoTime() > end) {
                throw new AssertionError("it did not become so");
            }
            Thread.sleep(5);
        }
    }

    static void equal(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    static void that(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
