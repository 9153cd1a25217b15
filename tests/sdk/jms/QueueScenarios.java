// What an application does with queues through Qpid JMS, as short programs that fail by throwing.
// Names begin with the verb of a sentence; test_jms.py reads them from this text.

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class QueueScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("send and receive text, bytes, map, stream and object messages", QueueScenarios::kinds);
        ALL.put("keep headers and properties", QueueScenarios::headers);
        ALL.put("acknowledge some messages and receive the others again", QueueScenarios::acknowledge);
        ALL.put("commit a session that receives and sends", QueueScenarios::commit);
        ALL.put("roll back a session that receives and sends", QueueScenarios::rollBack);
        ALL.put("browse a queue and leave everything there", QueueScenarios::browse);
        ALL.put("receive by a selector and leave the rest", QueueScenarios::select);
        ALL.put("let messages expire", QueueScenarios::expire);
        ALL.put("be refused a queue that is not there", QueueScenarios::notThere);
    }

    private QueueScenarios() {}

    private static void kinds(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            MessageProducer producer = session.createProducer(queue);
            producer.send(session.createTextMessage("text"));
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeBytes(new byte[] {1, 2, 3});
            producer.send(bytes);
            MapMessage map = session.createMapMessage();
            map.setInt("number", 7);
            map.setString("word", "seven");
            producer.send(map);
            StreamMessage stream = session.createStreamMessage();
            stream.writeLong(8L);
            producer.send(stream);
            producer.send(session.createObjectMessage(new ArrayList<>(List.of("a", "b"))));
            MessageConsumer consumer = session.createConsumer(queue);
            equal("text", ((TextMessage) next(consumer)).getText());
            equal(3L, ((BytesMessage) next(consumer)).getBodyLength());
            MapMessage gotMap = (MapMessage) next(consumer);
            equal(7, gotMap.getInt("number"));
            equal("seven", gotMap.getString("word"));
            equal(8L, ((StreamMessage) next(consumer)).readLong());
            equal(List.of("a", "b"), ((ObjectMessage) next(consumer)).getObject());
        }
        equal(0, world.counters("queue").get("active"));
    }

    private static void headers(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            Message sent = session.createTextMessage("hello");
            sent.setJMSCorrelationID("correlation");
            sent.setJMSType("type");
            sent.setJMSReplyTo(session.createQueue("other"));
            sent.setStringProperty("color", "red");
            sent.setLongProperty("amount", 5_000_000_000L);
            MessageProducer producer = session.createProducer(queue);
            producer.send(sent, DeliveryMode.PERSISTENT, 9, 0);
            MessageConsumer consumer = session.createConsumer(queue);
            Message got = next(consumer);
            equal(sent.getJMSMessageID(), got.getJMSMessageID());
            equal("correlation", got.getJMSCorrelationID());
            equal("type", got.getJMSType());
            equal(session.createQueue("other"), got.getJMSReplyTo());
            equal(queue, got.getJMSDestination());
            equal("red", got.getStringProperty("color"));
            equal(5_000_000_000L, got.getLongProperty("amount"));
            equal(9, got.getJMSPriority());
            equal(DeliveryMode.PERSISTENT, got.getJMSDeliveryMode());
            producer.send(session.createTextMessage("passing"), DeliveryMode.NON_PERSISTENT, 4, 0);
            equal(DeliveryMode.NON_PERSISTENT, next(consumer).getJMSDeliveryMode());
            equal(false, got.getJMSRedelivered());
            equal(1, got.getIntProperty("JMSXDeliveryCount"));
        }
    }

    private static void acknowledge(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue("queue");
            send(session, queue, "a", "b");
            MessageConsumer consumer = session.createConsumer(queue);
            next(consumer).acknowledge();
            equal("b", ((TextMessage) next(consumer)).getText());
        }
        world.advance(61); // the lock of the other runs out
        equal(1, world.counters("queue").get("active"));
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Message again = next(session.createConsumer(session.createQueue("queue")));
            equal("b", ((TextMessage) again).getText());
            equal(true, again.getJMSRedelivered());
            // Qpid JMS gives it back when it closes, and may be sent it once more before the link is closed.
            that(again.getIntProperty("JMSXDeliveryCount") >= 2, "the first delivery was not counted");
        }
    }

    private static void commit(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session plain = session(connection);
            Queue queue = plain.createQueue("queue");
            Queue other = plain.createQueue("other");
            send(plain, queue, "in");
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(queue);
            equal("in", ((TextMessage) next(consumer)).getText());
            send(session, other, "out");
            equal(0, world.counters("other").get("active"));
            session.commit();
            equal(List.of("out"), texts(plain.createConsumer(other), 1));
        }
        equal(0, world.counters("queue").get("active"));
    }

    private static void rollBack(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session plain = session(connection);
            Queue queue = plain.createQueue("queue");
            send(plain, queue, "in");
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(queue);
            equal("in", ((TextMessage) next(consumer)).getText());
            send(session, session.createQueue("other"), "out");
            session.rollback();
            Message again = next(consumer);
            equal("in", ((TextMessage) again).getText());
            equal(true, again.getJMSRedelivered());
            session.commit();
        }
        equal(0, world.counters("queue").get("active"));
        equal(0, world.counters("other").get("active"));
    }

    private static void browse(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            send(session, queue, "a", "b", "c");
            for (int each = 0; each < 2; each++) {
                equal(3, world.counters("queue").get("active"));
                QueueBrowser browser = session.createBrowser(queue);
                List<String> seen = new ArrayList<>();
                for (Object message : Collections.list(browser.getEnumeration())) {
                    seen.add(((TextMessage) message).getText());
                }
                browser.close();
                equal(List.of("a", "b", "c"), seen);
            }
            equal(3, world.counters("queue").get("active"));
            equal(List.of("a", "b", "c"), texts(session.createConsumer(queue), 3));
        }
        equal(0, world.counters("queue").get("active"));
    }

    private static void select(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            MessageProducer producer = session.createProducer(queue);
            for (String color : List.of("red", "blue", "red", "green")) {
                Message message = session.createTextMessage(color);
                message.setStringProperty("color", color);
                producer.send(message);
            }
            MessageConsumer red = session.createConsumer(queue, "color = 'red' AND JMSPriority = 4");
            equal(List.of("red", "red"), texts(red, 2));
            red.close();
            until(() -> world.counters("queue").get("active") == 2);
            QueueBrowser browser = session.createBrowser(queue, "color LIKE 'g%'");
            equal(1, Collections.list(browser.getEnumeration()).size());
            browser.close();
            equal(2, world.counters("queue").get("active"));
            equal(List.of("blue", "green"), texts(session.createConsumer(queue), 2));
        }
    }

    private static void expire(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            MessageProducer producer = session.createProducer(queue);
            producer.setTimeToLive(60_000);
            producer.send(session.createTextMessage("short"));
            producer.setTimeToLive(0);
            producer.send(session.createTextMessage("long"));
            world.advance(61);
            equal(List.of("long"), texts(session.createConsumer(queue), 1));
        }
        equal(0, world.counters("queue").get("active"));
    }

    private static void notThere(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            thrown(jakarta.jms.InvalidDestinationException.class,
                () -> session.createConsumer(session.createQueue("nowhere")));
            thrown(jakarta.jms.InvalidDestinationException.class,
                () -> session.createProducer(session.createQueue("nowhere")));
            send(session, session.createQueue("queue"), "still connected");
        }
    }
}
