// What an application does with temporary destinations through Qpid JMS.
// Names begin with the verb of a sentence; test_jms.py reads them from this text.

import jakarta.jms.Connection;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class TemporaryScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("answer a request at a temporary queue", TemporaryScenarios::requestReply);
        ALL.put("publish to a temporary topic", TemporaryScenarios::topic);
        ALL.put("delete a temporary queue", TemporaryScenarios::delete);
        ALL.put("lose temporary queues with the connection", TemporaryScenarios::gone);
    }

    private TemporaryScenarios() {}

    private static void requestReply(World world) throws Exception {
        try (Connection asking = connect(world); Connection answering = connect(world)) {
            Session asker = session(asking);
            Session answerer = session(answering);
            Queue requests = asker.createQueue("queue");
            TemporaryQueue replies = asker.createTemporaryQueue();
            MessageConsumer reply = asker.createConsumer(replies);
            MessageConsumer request = answerer.createConsumer(requests);
            MessageProducer anywhere = answerer.createProducer(null);
            for (String question : List.of("one", "two", "three")) {
                Message asked = asker.createTextMessage(question);
                asked.setJMSReplyTo(replies);
                MessageProducer producer = asker.createProducer(requests);
                producer.send(asked);
                Message got = next(request);
                Message answer = answerer.createTextMessage("re: " + got.getBody(String.class));
                answer.setJMSCorrelationID(got.getJMSMessageID());
                anywhere.send(got.getJMSReplyTo(), answer);
                Message answered = next(reply);
                equal("re: " + question, answered.getBody(String.class));
                equal(asked.getJMSMessageID(), answered.getJMSCorrelationID());
            }
            until(() -> world.counters(replies.getQueueName()).get("active") == 0);
        }
    }

    private static void topic(World world) throws Exception {
        try (Connection connection = connect(world); Connection sending = connect(world)) {
            Session session = session(connection);
            TemporaryTopic topic = session.createTemporaryTopic();
            MessageConsumer first = session.createConsumer(topic);
            MessageConsumer second = session.createConsumer(topic);
            send(session(sending), topic, "news");
            equal(List.of("news"), texts(first, 1));
            equal(List.of("news"), texts(second, 1));
        }
    }

    private static void delete(World world) throws Exception {
        try (Connection connection = connect(world)) {
            Session session = session(connection);
            TemporaryQueue queue = session.createTemporaryQueue();
            that(world.entities().contains(queue.getQueueName()), "it is not there");
            send(session, queue, "left over");
            queue.delete();
            until(() -> !world.entities().contains(queue.getQueueName()));
            Session other = session(connection);
            Queue gone = other.createQueue(queue.getQueueName());
            thrown(InvalidDestinationException.class, () -> send(other, gone, "too late"));
        }
    }

    private static void gone(World world) throws Exception {
        List<String> before = world.entities();
        Connection connection = connect(world);
        Session session = session(connection);
        for (int each = 0; each < 5; each++) {
            send(session, session.createTemporaryQueue(), "left over");
        }
        equal(before.size() + 5, world.entities().size());
        connection.close();
        until(() -> world.entities().equals(before));
    }
}
