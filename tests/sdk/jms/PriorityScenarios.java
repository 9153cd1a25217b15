// What an application that counts on JMSPriority sees through Qpid JMS, of queues and topics that order by it.
// Names begin with the verb of a sentence; test_jms.py reads them from this text.

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class PriorityScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();
    /** A message that was sent to the client is not overtaken. */
    private static final String NO_PREFETCH = "?jms.prefetchPolicy.all=0";

    static {
        ALL.put("receive messages of a higher priority first", PriorityScenarios::first);
        ALL.put("receive by a selector and by priority", PriorityScenarios::selected);
        ALL.put("receive a message that was rolled back in its place", PriorityScenarios::rolledBack);
        ALL.put("receive from a topic by priority", PriorityScenarios::topic);
    }

    private PriorityScenarios() {}

    private static void first(World world) throws Exception {
        try (Connection connection = connect(world, null, NO_PREFETCH)) {
            Session session = session(connection);
            Queue queue = session.createQueue("urgent");
            prioritized(session, queue, "0 a", "4 a", "9 a", "4 b", "9 b");
            QueueBrowser browser = session.createBrowser(queue);
            List<String> seen = new ArrayList<>();
            for (Object message : Collections.list(browser.getEnumeration())) {
                seen.add(((TextMessage) message).getText());
            }
            browser.close();
            equal(List.of("0 a", "4 a", "9 a", "4 b", "9 b"), seen);
            MessageConsumer consumer = session.createConsumer(queue);
            Message highest = next(consumer);
            equal(9, highest.getJMSPriority());
            equal("9 a", highest.getBody(String.class));
            equal(List.of("9 b", "4 a"), texts(consumer, 2));
            prioritized(session, queue, "3 c", "5 c");
            equal(List.of("5 c", "4 b", "3 c", "0 a"), texts(consumer, 4));
        }
        until(() -> world.counters("urgent").get("active") == 0);
    }

    private static void selected(World world) throws Exception {
        try (Connection connection = connect(world, null, NO_PREFETCH)) {
            Session session = session(connection);
            Queue queue = session.createQueue("urgent");
            prioritized(session, queue, "0 a", "4 a", "9 a", "9 b");
            MessageConsumer some = session.createConsumer(queue, "name = 'a' AND JMSPriority > 0");
            equal(List.of("9 a", "4 a"), texts(some, 2));
            prioritized(session, queue, "2 a", "6 a");
            equal(List.of("6 a", "2 a"), texts(some, 2));
            some.close();
            equal(List.of("9 b", "0 a"), texts(session.createConsumer(queue), 2));
        }
    }

    private static void rolledBack(World world) throws Exception {
        try (Connection connection = connect(world, null, NO_PREFETCH)) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue("urgent");
            prioritized(session, queue, "4 a", "4 b");
            session.commit();
            MessageConsumer consumer = session.createConsumer(queue);
            equal(List.of("4 a"), texts(consumer, 1));
            session.rollback();
            prioritized(session(connection), queue, "9 a", "4 c");
            // Qpid JMS keeps what was rolled back, and delivers it again itself.
            List<String> got = texts(consumer, 4);
            session.commit();
            that(got.indexOf("4 a") < got.indexOf("4 b"), "it lost its place: " + got);
            that(got.indexOf("9 a") < got.indexOf("4 b"), "the higher priority waits: " + got);
            that(got.indexOf("4 b") < got.indexOf("4 c"), "one priority is not in order: " + got);
        }
    }

    private static void topic(World world) throws Exception {
        try (Connection connection = connect(world, "me", NO_PREFETCH)) {
            Session session = session(connection);
            Topic topic = session.createTopic("alarms");
            List<MessageConsumer> consumers = List.of(
                session.createConsumer(topic),
                session.createDurableConsumer(topic, "lasting"),
                session.createSharedConsumer(topic, "shared", "name = 'a'"));
            prioritized(session, topic, "4 a", "9 a", "0 a", "5 a");
            for (MessageConsumer consumer : consumers) {
                equal(List.of("9 a", "5 a", "4 a", "0 a"), texts(consumer, 4));
            }
        }
    }

    /** Sends texts of a priority and a name. */
    private static void prioritized(Session session, Destination to, String... texts) throws Exception {
        MessageProducer producer = session.createProducer(to);
        for (String text : texts) {
            Message message = session.createTextMessage(text);
            message.setStringProperty("name", text.substring(2));
            producer.send(message, DeliveryMode.PERSISTENT, text.charAt(0) - '0', 0);
        }
        producer.close();
    }
}
