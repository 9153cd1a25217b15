// What an application does with topics through Qpid JMS: consumers with and without a subscription that stays, alone and
// shared. Names begin with the verb of a sentence; test_jms.py reads them from this text.

import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class TopicScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("receive from a topic as long as there is a consumer", TopicScenarios::passing);
        ALL.put("receive from a topic by a selector", TopicScenarios::selector);
        ALL.put("leave out messages of its own by a selector, since noLocal has no effect", TopicScenarios::noLocal);
        ALL.put("keep the messages of a durable subscription", TopicScenarios::durable);
        ALL.put("make a durable subscription anew for another selector or topic", TopicScenarios::changed);
        ALL.put("unsubscribe", TopicScenarios::unsubscribe);
        ALL.put("share a durable subscription", TopicScenarios::sharedDurable);
        ALL.put("share a subscription that is deleted with its last consumer", TopicScenarios::sharedPassing);
        ALL.put("share a subscription among clients of one id only", TopicScenarios::sharedByClient);
    }

    private TopicScenarios() {}

    private static void passing(World world) throws Exception {
        List<String> before = world.entities();
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Topic topic = session.createTopic("topic");
            send(session, topic, "too early");
            MessageConsumer first = session.createConsumer(topic);
            MessageConsumer second = session.createConsumer(topic);
            equal(before.size() + 2, world.entities().size());
            send(session, topic, "a", "b");
            equal(List.of("a", "b"), texts(first, 2));
            equal(List.of("a", "b"), texts(second, 2));
            first.close();
            until(() -> world.entities().size() == before.size() + 1);
        }
        until(() -> world.entities().equals(before));
    }

    private static void selector(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            Topic topic = session.createTopic("topic");
            MessageConsumer consumer = session.createConsumer(topic, "color = 'red'");
            colored(session, topic, "blue", "red", "green", "red");
            equal(List.of("red", "red"), texts(consumer, 2));
        }
    }

    private static void noLocal(World world) throws Exception {
        try (Connection here = connect(world); Connection there = connect(world)) {
            Session session = session(here);
            Topic topic = session.createTopic("topic");
            MessageConsumer asking = session.createConsumer(topic, null, true);
            MessageConsumer selecting = session.createConsumer(topic, "color <> 'mine'");
            colored(session, topic, "mine");
            colored(session(there), topic, "theirs");
            equal(List.of("mine", "theirs"), texts(asking, 2));
            equal(List.of("theirs"), texts(selecting, 1));
        }
    }

    private static void durable(World world) throws Exception {
        String subscription = "topic/Subscriptions/mine$me$D";
        try (Connection connection = connect(world, "me")) {
            Session session = session(connection);
            MessageConsumer consumer = session.createDurableConsumer(session.createTopic("topic"), "mine");
            send(session, session.createTopic("topic"), "a");
            equal(List.of("a"), texts(consumer, 1));
            thrown(JMSException.class, () -> session.createDurableConsumer(session.createTopic("topic"), "mine"));
            consumer.close();
            send(session, session.createTopic("topic"), "b");
        }
        that(world.entities().contains(subscription), "there is no " + subscription);
        equal(1, world.counters(subscription).get("active"));
        try (Connection connection = connect(world, "me")) {
            Session session = session(connection);
            equal(List.of("b"), texts(session.createDurableConsumer(session.createTopic("topic"), "mine"), 1));
        }
        equal(0, world.counters(subscription).get("active"));
    }

    private static void changed(World world) throws Exception {
        String subscription = "topic/Subscriptions/mine$me$D";
        try (Connection connection = connect(world, "me")) {
            Session session = session(connection);
            Topic topic = session.createTopic("topic");
            session.createDurableConsumer(topic, "mine").close();
            colored(session, topic, "blue", "red");
            equal(2, world.counters(subscription).get("active"));
            MessageConsumer red = session.createDurableConsumer(topic, "mine", "color = 'red'", false);
            equal(0, world.counters(subscription).get("active"));
            equal(List.of("[color] = 'red'"), world.rules(subscription));
            colored(session, topic, "blue", "red");
            equal(List.of("red"), texts(red, 1));
            red.close();
            colored(session, topic, "red");
            red = session.createDurableConsumer(topic, "mine", "color = 'red'", false);
            equal(List.of("red"), texts(red, 1));
            red.close();
            session.createDurableConsumer(session.createTopic("news"), "mine").close();
            that(!world.entities().contains(subscription), "it is on both topics");
            that(world.entities().contains("news/Subscriptions/mine$me$D"), "it is not on the other topic");
        }
    }

    private static void unsubscribe(World world) throws Exception {
        List<String> before = world.entities();
        try (Connection connection = connect(world, "me")) {
            Session session = session(connection);
            Topic topic = session.createTopic("topic");
            MessageConsumer consumer = session.createDurableConsumer(topic, "mine");
            thrown(JMSException.class, () -> session.unsubscribe("mine"));
            consumer.close();
            session.unsubscribe("mine");
            session.createDurableConsumer(topic, "mine").close();
            session.unsubscribe("mine");
            equal(before, world.entities());
            thrown(InvalidDestinationException.class, () -> session.unsubscribe("mine"));
        }
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            session.createSharedDurableConsumer(session.createTopic("topic"), "ours").close();
            that(world.entities().contains("topic/Subscriptions/ours$$D"), "it is not there");
            session.unsubscribe("ours");
            equal(before, world.entities());
        }
    }

    private static void sharedDurable(World world) throws Exception {
        String subscription = "topic/Subscriptions/ours$$D";
        try (Connection one = connect(world); Connection two = connect(world)) {
            Session first = session(one);
            Session second = session(two);
            Topic topic = first.createTopic("topic");
            MessageConsumer here = first.createSharedDurableConsumer(topic, "ours");
            MessageConsumer there = second.createSharedDurableConsumer(topic, "ours");
            MessageConsumer alsoHere = first.createSharedDurableConsumer(topic, "ours");
            send(first, topic, "a", "b", "c");
            List<String> got = List.of(
                next(here).getBody(String.class),
                next(there).getBody(String.class),
                next(alsoHere).getBody(String.class));
            equal(List.of("a", "b", "c"), got.stream().sorted().toList());
            thrown(JMSException.class, () -> second.createSharedDurableConsumer(topic, "ours", "color = 'red'"));
        }
        that(world.entities().contains(subscription), "there is no " + subscription);
        equal(0, world.counters(subscription).get("active"));
    }

    private static void sharedPassing(World world) throws Exception {
        List<String> before = world.entities();
        try (Connection one = connect(world); Connection two = connect(world)) {
            Session first = session(one);
            Session second = session(two);
            Topic topic = first.createTopic("topic");
            MessageConsumer here = first.createSharedConsumer(topic, "ours");
            MessageConsumer there = second.createSharedConsumer(topic, "ours");
            that(world.entities().contains("topic/Subscriptions/ours$$ND"), "it is not there");
            equal(before.size() + 1, world.entities().size());
            send(first, topic, "a", "b");
            List<String> got = List.of(next(here).getBody(String.class), next(there).getBody(String.class));
            equal(List.of("a", "b"), got.stream().sorted().toList());
            here.close();
            send(first, topic, "c");
            equal(List.of("c"), texts(there, 1));
        }
        until(() -> world.entities().equals(before));
    }

    private static void sharedByClient(World world) throws Exception {
        try (Connection one = connect(world, "one"); Connection two = connect(world, "two")) {
            Session first = session(one);
            Session second = session(two);
            Topic topic = first.createTopic("topic");
            MessageConsumer here = first.createSharedDurableConsumer(topic, "ours");
            MessageConsumer there = second.createSharedDurableConsumer(topic, "ours");
            send(first, topic, "a");
            equal(List.of("a"), texts(here, 1));
            equal(List.of("a"), texts(there, 1));
        }
        that(world.entities().contains("topic/Subscriptions/ours$one$D"), "it is not there");
        that(world.entities().contains("topic/Subscriptions/ours$two$D"), "it is not there");
    }

    private static void colored(Session session, Topic topic, String... colors) throws JMSException {
        MessageProducer producer = session.createProducer(topic);
        for (String color : colors) {
            Message message = session.createTextMessage(color);
            message.setStringProperty("color", color);
            producer.send(message);
        }
        producer.close();
    }
}
