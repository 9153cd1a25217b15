// The same through azure-servicebus-jms, Microsoft's wrapper of Qpid JMS, which always uses TLS.
// Names begin with the verb of a sentence; test_jms.py reads them from this text.

import com.azure.servicebus.jms.ServiceBusJmsConnectionFactory;
import com.azure.servicebus.jms.ServiceBusJmsConnectionFactorySettings;
import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class AzureScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("send and receive through azure-servicebus-jms", AzureScenarios::sendAndReceive);
        ALL.put("share a durable subscription through azure-servicebus-jms", AzureScenarios::shared);
    }

    private AzureScenarios() {}

    private static Connection azure(World world) throws Exception {
        ServiceBusJmsConnectionFactorySettings settings = new ServiceBusJmsConnectionFactorySettings();
        settings.setShouldReconnect(false);
        Connection connection = new ServiceBusJmsConnectionFactory(
            "RootManageSharedAccessKey", "SAS_KEY_VALUE", world.endpoint(), settings).createConnection();
        connection.start();
        return connection;
    }

    private static void sendAndReceive(World world) throws Exception {
        try (Connection connection = azure(world)) {
            Session session = session(connection);
            Queue queue = session.createQueue("queue");
            TemporaryQueue replies = session.createTemporaryQueue();
            send(session, queue, "a");
            send(session, replies, "b");
            equal(List.of("a"), texts(session.createConsumer(queue), 1));
            equal(List.of("b"), texts(session.createConsumer(replies), 1));
        }
    }

    private static void shared(World world) throws Exception {
        try (Connection connection = azure(world)) {
            Session session = session(connection);
            MessageConsumer one = session.createSharedDurableConsumer(session.createTopic("topic"), "ours");
            send(session, session.createTopic("topic"), "a");
            equal(List.of("a"), texts(one, 1));
        }
        that(world.entities().contains("topic/Subscriptions/ours$$D"), "it is not there");
    }
}
