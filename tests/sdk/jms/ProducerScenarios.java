// What an application sends through Qpid JMS in ways that need a capability of the broker.
// Names begin with the verb of a sentence; test_jms.py reads them from this text.

import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class ProducerScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("send to several destinations with one producer", ProducerScenarios::several);
        ALL.put("be refused one message to a queue that is not there", ProducerScenarios::oneRefused);
        ALL.put("commit messages to several destinations", ProducerScenarios::commit);
        ALL.put("deliver later", ProducerScenarios::later);
        ALL.put("be refused a client id that is in use", ProducerScenarios::clientId);
    }

    private ProducerScenarios() {}

    private static void several(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            Queue other = session.createQueue("other");
            Topic topic = session.createTopic("topic");
            MessageProducer producer = session.createProducer(null);
            for (Destination each : List.of(queue, other, topic, queue)) {
                producer.send(each, session.createTextMessage("for " + each));
            }
            equal(List.of("for queue", "for queue"), texts(session.createConsumer(queue), 2));
            equal(List.of("for other"), texts(session.createConsumer(other), 1));
            Queue subscription = session.createQueue("topic/Subscriptions/all");
            equal(List.of("for topic"), texts(session.createConsumer(subscription), 1));
        }
    }

    private static void oneRefused(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            MessageProducer producer = session.createProducer(null);
            Queue queue = session.createQueue("queue");
            producer.send(queue, session.createTextMessage("before"));
            Queue nowhere = session.createQueue("nowhere");
            Message lost = session.createTextMessage("lost");
            thrown(InvalidDestinationException.class, () -> producer.send(nowhere, lost));
            producer.send(queue, session.createTextMessage("after"));
            equal(List.of("before", "after"), texts(session.createConsumer(queue), 2));
        }
    }

    private static void commit(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageProducer producer = session.createProducer(null);
            producer.send(session.createQueue("queue"), session.createTextMessage("a"));
            producer.send(session.createQueue("other"), session.createTextMessage("b"));
            equal(0, world.counters("queue").get("active"));
            session.commit();
            equal(1, world.counters("queue").get("active"));
            equal(1, world.counters("other").get("active"));
            producer.send(session.createQueue("queue"), session.createTextMessage("c"));
            session.rollback();
            equal(1, world.counters("queue").get("active"));
        }
    }

    private static void later(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            MessageProducer producer = session.createProducer(queue);
            producer.setDeliveryDelay(600_000);
            producer.send(session.createTextMessage("later"));
            producer.setDeliveryDelay(0);
            producer.send(session.createTextMessage("now"));
            equal(1, world.counters("queue").get("active"));
            equal(1, world.counters("queue").get("scheduled"));
            MessageConsumer consumer = session.createConsumer(queue);
            equal(List.of("now"), texts(consumer, 1));
            until(() -> world.counters("queue").get("active") == 0); // else its lock could run out, too
            world.advance(660);
            Message late = next(consumer);
            equal("later", late.getBody(String.class));
            that(late.getJMSDeliveryTime() >= late.getJMSTimestamp() + 600_000, "the delivery time was not kept");
        }
    }

    private static void clientId(World world) throws Exception {
        try (Connection first = connect(world, "me")) {
            thrown(jakarta.jms.InvalidClientIDException.class, () -> connect(world, "me"));
            send(session(first), session(first).createQueue("queue"), "still connected");
            connect(world, "another").close();
        }
        connect(world, "me").close();
    }
}
