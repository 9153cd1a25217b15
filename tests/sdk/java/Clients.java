// Clients of one connection, which are closed together.

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

final class Clients implements AutoCloseable {
    final ServiceBusClientBuilder builder;
    private final List<AutoCloseable> open = new ArrayList<>();

    Clients(World world) {
        this(world.connectionString());
    }

    Clients(String connectionString) {
        builder = new ServiceBusClientBuilder().connectionString(connectionString);
    }

    <T extends AutoCloseable> T keep(T client) {
        open.add(0, client);
        return client;
    }

    // --- queues ---

    ServiceBusSenderClient sender(String queue) {
        return keep(builder.sender().queueName(queue).buildClient());
    }

    ServiceBusReceiverClient receiver(String queue) {
        return receiver(queue, SubQueue.NONE);
    }

    ServiceBusReceiverClient receiver(String queue, SubQueue part) {
        return keep(builder.receiver().queueName(queue).subQueue(part).maxAutoLockRenewDuration(Duration.ZERO)
            .disableAutoComplete().buildClient());
    }

    ServiceBusSessionReceiverClient sessions(String queue) {
        return keep(builder.sessionReceiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO)
            .disableAutoComplete().buildClient());
    }

    // --- topics ---

    ServiceBusSenderClient publisher(String topic) {
        return keep(builder.sender().topicName(topic).buildClient());
    }

    ServiceBusReceiverClient subscriber(String topic, String subscription) {
        return subscriber(topic, subscription, SubQueue.NONE);
    }

    ServiceBusReceiverClient subscriber(String topic, String subscription, SubQueue part) {
        return keep(builder.receiver().topicName(topic).subscriptionName(subscription).subQueue(part)
            .maxAutoLockRenewDuration(Duration.ZERO).disableAutoComplete().buildClient());
    }

    ServiceBusSessionReceiverClient sessions(String topic, String subscription) {
        return keep(builder.sessionReceiver().topicName(topic).subscriptionName(subscription)
            .maxAutoLockRenewDuration(Duration.ZERO).disableAutoComplete().buildClient());
    }

    ServiceBusRuleManagerClient rules(String topic, String subscription) {
        return keep(builder.ruleManager().topicName(topic).subscriptionName(subscription).buildClient());
    }

    @Override
    public void close() throws Exception {
        for (AutoCloseable client : open) {
            client.close();
        }
    }
}
