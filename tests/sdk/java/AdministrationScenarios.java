// What an application does with ServiceBusAdministrationClient of azure-messaging-servicebus, over TLS.
// Names begin with the verb of a sentence; test_java.py reads them from this text, and has the entities.

import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.exception.ClientAuthenticationException;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.http.policy.ProtocolPolicy;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.models.AccessRights;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EmptyRuleAction;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.MessagingSku;
import com.azure.messaging.servicebus.administration.models.NamespaceProperties;
import com.azure.messaging.servicebus.administration.models.NamespaceType;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.QueueRuntimeProperties;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SharedAccessAuthorizationRule;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.SubscriptionProperties;
import com.azure.messaging.servicebus.administration.models.SubscriptionRuntimeProperties;
import com.azure.messaging.servicebus.administration.models.TopicProperties;
import com.azure.messaging.servicebus.administration.models.TopicRuntimeProperties;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class AdministrationScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("create, get, update and delete a queue", AdministrationScenarios::queue);
        ALL.put("create, get, update and delete a topic", AdministrationScenarios::topic);
        ALL.put("create, get, update and delete a subscription", AdministrationScenarios::subscription);
        ALL.put("create, get, update and delete rules", AdministrationScenarios::rules);
        ALL.put("list more entities than a page holds", AdministrationScenarios::lists);
        ALL.put("read how many messages there are, and how large", AdministrationScenarios::runtime);
        ALL.put("read the properties of the namespace", AdministrationScenarios::namespace);
        ALL.put("set up entities and use them", AdministrationScenarios::use);
        ALL.put("delete an entity that is received from, and create it again", AdministrationScenarios::again);
        ALL.put("get the exception class for each error", AdministrationScenarios::refused);
        ALL.put("administer over plain HTTP", AdministrationScenarios::plain);
    }

    private AdministrationScenarios() {}

    // --- entities ---

    private static void queue(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        QueueProperties created = client.createQueue("new", new CreateQueueOptions()
            .setLockDuration(Duration.ofSeconds(45))
            .setMaxSizeInMegabytes(2048)
            .setDuplicateDetectionRequired(true)
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(2))
            .setDefaultMessageTimeToLive(Duration.ofHours(3))
            .setDeadLetteringOnMessageExpiration(true)
            .setMaxDeliveryCount(7)
            .setBatchedOperationsEnabled(false)
            .setStatus(EntityStatus.RECEIVE_DISABLED)
            .setAutoDeleteOnIdle(Duration.ofMinutes(30))
            .setUserMetadata("what <people> & programs say")
            .setForwardDeadLetteredMessagesTo("other"));
        for (QueueProperties found : List.of(created, client.getQueue("NEW"))) {
            equal("new", found.getName());
            equal(Duration.ofSeconds(45), found.getLockDuration());
            equal(2048L, found.getMaxSizeInMegabytes());
            equal(true, found.isDuplicateDetectionRequired());
            equal(Duration.ofMinutes(2), found.getDuplicateDetectionHistoryTimeWindow());
            equal(Duration.ofHours(3), found.getDefaultMessageTimeToLive());
            equal(true, found.isDeadLetteringOnMessageExpiration());
            equal(7, found.getMaxDeliveryCount());
            equal(false, found.isBatchedOperationsEnabled());
            equal(EntityStatus.RECEIVE_DISABLED, found.getStatus());
            equal(Duration.ofMinutes(30), found.getAutoDeleteOnIdle());
            equal("what <people> & programs say", found.getUserMetadata());
            equal(true, found.getForwardDeadLetteredMessagesTo().endsWith("/other"));
            equal(null, found.getForwardTo());
            equal(false, found.isSessionRequired());
        }
        QueueProperties updated = client.updateQueue(
            created.setMaxDeliveryCount(8).setStatus(EntityStatus.ACTIVE).setLockDuration(Duration.ofMinutes(5)));
        for (QueueProperties found : List.of(updated, client.getQueue("new"))) {
            equal(8, found.getMaxDeliveryCount());
            equal(EntityStatus.ACTIVE, found.getStatus());
            equal(Duration.ofMinutes(5), found.getLockDuration());
            equal(Duration.ofHours(3), found.getDefaultMessageTimeToLive());
            equal(true, found.getForwardDeadLetteredMessagesTo().endsWith("/other"));
        }
        equal(true, client.getQueueExists("new"));
        client.deleteQueue("new");
        equal(false, client.getQueueExists("new"));
        equal(true, client.createQueue("talks/in", new CreateQueueOptions().setSessionRequired(true))
            .isSessionRequired());
        equal(true, client.getQueue("talks/in").isSessionRequired());
    }

    private static void topic(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        TopicProperties created = client.createTopic("new", new CreateTopicOptions()
            .setDefaultMessageTimeToLive(Duration.ofHours(3))
            .setMaxSizeInMegabytes(3072)
            .setDuplicateDetectionRequired(true)
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(2))
            .setBatchedOperationsEnabled(false)
            .setAutoDeleteOnIdle(Duration.ofMinutes(30))
            .setUserMetadata("a topic"));
        for (TopicProperties found : List.of(created, client.getTopic("new"))) {
            equal("new", found.getName());
            equal(Duration.ofHours(3), found.getDefaultMessageTimeToLive());
            equal(3072L, found.getMaxSizeInMegabytes());
            equal(true, found.isDuplicateDetectionRequired());
            equal(Duration.ofMinutes(2), found.getDuplicateDetectionHistoryTimeWindow());
            equal(false, found.isBatchedOperationsEnabled());
            equal(Duration.ofMinutes(30), found.getAutoDeleteOnIdle());
            equal("a topic", found.getUserMetadata());
            equal(EntityStatus.ACTIVE, found.getStatus());
        }
        client.updateTopic(created.setStatus(EntityStatus.SEND_DISABLED).setUserMetadata("another word"));
        equal(EntityStatus.SEND_DISABLED, client.getTopic("new").getStatus());
        equal("another word", client.getTopic("new").getUserMetadata());
        equal(3072L, client.getTopic("new").getMaxSizeInMegabytes());
        equal(true, client.getTopicExists("new"));
        client.deleteTopic("new");
        equal(false, client.getTopicExists("new"));
    }

    private static void subscription(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        SubscriptionProperties created = client.createSubscription("topic", "new", new CreateSubscriptionOptions()
            .setLockDuration(Duration.ofSeconds(45))
            .setDefaultMessageTimeToLive(Duration.ofHours(3))
            .setDeadLetteringOnMessageExpiration(true)
            .setEnableDeadLetteringOnFilterEvaluationExceptions(false)
            .setMaxDeliveryCount(7)
            .setBatchedOperationsEnabled(false)
            .setAutoDeleteOnIdle(Duration.ofMinutes(30))
            .setForwardTo("other")
            .setUserMetadata("a subscription"));
        for (SubscriptionProperties found : List.of(created, client.getSubscription("topic", "new"))) {
            equal("topic", found.getTopicName());
            equal("new", found.getSubscriptionName());
            equal(Duration.ofSeconds(45), found.getLockDuration());
            equal(Duration.ofHours(3), found.getDefaultMessageTimeToLive());
            equal(true, found.isDeadLetteringOnMessageExpiration());
            equal(false, found.isDeadLetteringOnFilterEvaluationExceptions());
            equal(7, found.getMaxDeliveryCount());
            equal(false, found.isBatchedOperationsEnabled());
            equal("a subscription", found.getUserMetadata());
            equal(true, found.getForwardTo().endsWith("/other"));
            equal(null, found.getForwardDeadLetteredMessagesTo());
            equal(false, found.isSessionRequired());
        }
        client.updateSubscription(created.setMaxDeliveryCount(8).setStatus(EntityStatus.DISABLED));
        SubscriptionProperties updated = client.getSubscription("topic", "new");
        equal(8, updated.getMaxDeliveryCount());
        equal(EntityStatus.DISABLED, updated.getStatus());
        // The SDK says nothing of it when it updates.
        equal(Duration.ofHours(3), updated.getDefaultMessageTimeToLive());
        equal(true, client.getSubscriptionExists("topic", "new"));
        client.deleteSubscription("topic", "new");
        equal(false, client.getSubscriptionExists("topic", "new"));
        equal(false, client.getSubscriptionExists("nowhere", "new"));
    }

    private static void rules(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        RuleProperties first = only(client.listRules("topic", "all"));
        equal("$Default", first.getName());
        equal(TrueRuleFilter.class, first.getFilter().getClass());
        equal(EmptyRuleAction.class, first.getAction().getClass());

        SqlRuleFilter filter = new SqlRuleFilter("color = @color");
        filter.getParameters().put("@color", "red");
        SqlRuleAction action = new SqlRuleAction("SET mark = @mark");
        action.getParameters().put("@mark", "seen");
        // Other than everywhere else, the rule comes before the subscription here.
        client.createRule("topic", "sql", "all", new CreateRuleOptions(filter).setAction(action));
        RuleProperties sql = client.getRule("topic", "all", "SQL");
        equal("sql", sql.getName());
        equal("color = @color", ((SqlRuleFilter) sql.getFilter()).getSqlExpression());
        equal(Map.of("@color", "red"), ((SqlRuleFilter) sql.getFilter()).getParameters());
        equal("SET mark = @mark", ((SqlRuleAction) sql.getAction()).getSqlExpression());
        equal(Map.of("@mark", "seen"), ((SqlRuleAction) sql.getAction()).getParameters());

        CorrelationRuleFilter correlation = new CorrelationRuleFilter("c").setLabel("l").setMessageId("m")
            .setTo("t").setReplyTo("r").setSessionId("s").setReplyToSessionId("rs").setContentType("ct");
        correlation.getProperties().put("text", "x");
        client.createRule("topic", "correlation", "all", new CreateRuleOptions(correlation));
        equal(correlation, client.getRule("topic", "all", "correlation").getFilter());
        client.createRule("topic", "false", "all", new CreateRuleOptions(new FalseRuleFilter()));
        equal(FalseRuleFilter.class, client.getRule("topic", "all", "false").getFilter().getClass());

        sql.setFilter(new SqlRuleFilter("size > 3")).setAction(new EmptyRuleAction());
        client.updateRule("topic", "all", sql);
        RuleProperties updated = client.getRule("topic", "all", "sql");
        equal("size > 3", ((SqlRuleFilter) updated.getFilter()).getSqlExpression());
        equal(EmptyRuleAction.class, updated.getAction().getClass());

        client.deleteRule("topic", "all", "$Default");
        equal(List.of("sql", "correlation", "false"), names(client.listRules("topic", "all"), RuleProperties::getName));

        client.createSubscription("topic", "own", "only", new CreateSubscriptionOptions(),
            new CreateRuleOptions(new SqlRuleFilter("1 < 2")));
        RuleProperties own = only(client.listRules("topic", "own"));
        equal("only", own.getName());
        equal("1 < 2", ((SqlRuleFilter) own.getFilter()).getSqlExpression());
    }

    private static void lists(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        List<String> queues = names(client.listQueues(), QueueProperties::getName);
        List<String> wanted = new ArrayList<>(queues);
        for (int number = 0; number < 100; number++) {
            client.createQueue("z-" + number);
            wanted.add("z-" + number);
        }
        wanted.sort(null);
        equal(wanted, names(client.listQueues(), QueueProperties::getName));
        equal(List.of(100, wanted.size() - 100), client.listQueues().streamByPage()
            .map(page -> page.getValue().size()).toList());
        equal(List.of("news", "relay", "talks", "topic"), names(client.listTopics(), TopicProperties::getName));
        equal(List.of("all", "big", "orders", "red"),
            names(client.listSubscriptions("topic"), SubscriptionProperties::getSubscriptionName));
    }

    // --- what is the case ---

    private static void runtime(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        QueueRuntimeProperties before = client.getQueueRuntimeProperties("queue");
        equal(0L, before.getTotalMessageCount());
        equal(0L, before.getSizeInBytes());
        equal(world.now(), before.getCreatedAt().toInstant().toEpochMilli());
        world.advance(10);
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            sender.sendMessages(List.of(message("x".repeat(1000)), message("b"), message("c")));
            sender.scheduleMessage(message("later"), in(world, 60));
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            List<ServiceBusReceivedMessage> got = receive(receiver, 2);
            receiver.deadLetter(got.get(1));
            clients.sender("astray").sendMessage(message("without a session"));
            one(clients.receiver("astray", SubQueue.TRANSFER_DEAD_LETTER_QUEUE));
            clients.publisher("topic").scheduleMessage(message("later"), in(world, 60));
            clients.publisher("topic").sendMessage(message("red", Map.of("color", "red")));
            ServiceBusReceiverClient subscriber = clients.subscriber("topic", "red");
            subscriber.deadLetter(one(subscriber));
        }
        QueueRuntimeProperties queue = client.getQueueRuntimeProperties("queue");
        equal("queue", queue.getName());
        equal(2, queue.getActiveMessageCount());
        equal(1, queue.getDeadLetterMessageCount());
        equal(1, queue.getScheduledMessageCount());
        equal(0, queue.getTransferMessageCount());
        equal(4L, queue.getTotalMessageCount());
        equal(true, queue.getSizeInBytes() > 1000);
        equal(world.now(), queue.getAccessedAt().toInstant().toEpochMilli());
        equal(before.getCreatedAt(), queue.getCreatedAt());
        equal(before.getUpdatedAt(), queue.getUpdatedAt());
        QueueRuntimeProperties astray = client.getQueueRuntimeProperties("astray");
        equal(0, astray.getActiveMessageCount());
        equal(1, astray.getTransferDeadLetterMessageCount());
        TopicRuntimeProperties topic = client.getTopicRuntimeProperties("topic");
        equal(4, topic.getSubscriptionCount());
        equal(1, topic.getScheduledMessageCount());
        equal(true, topic.getSizeInBytes() > 0);
        SubscriptionRuntimeProperties red = client.getSubscriptionRuntimeProperties("topic", "red");
        equal("red", red.getSubscriptionName());
        equal(0, red.getActiveMessageCount());
        equal(1, red.getDeadLetterMessageCount());
        equal(1L, red.getTotalMessageCount());
        equal(1, client.getSubscriptionRuntimeProperties("topic", "all").getActiveMessageCount());
    }

    private static void namespace(World world) throws Exception {
        NamespaceProperties found = Administration.client(world.connectionString()).getNamespaceProperties();
        equal("sbemulatorns", found.getName());
        equal(MessagingSku.STANDARD, found.getMessagingSku());
        equal(NamespaceType.MESSAGING, found.getNamespaceType());
        equal(world.now(), found.getCreatedTime().toInstant().toEpochMilli());
    }

    // --- messages ---

    private static void use(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        CreateQueueOptions ownKey = new CreateQueueOptions();
        ownKey.getAuthorizationRules().add(
            new SharedAccessAuthorizationRule("listener", "key-one", "key-two", List.of(AccessRights.LISTEN)));
        SharedAccessAuthorizationRule key =
            (SharedAccessAuthorizationRule) only(client.createQueue("end", ownKey).getAuthorizationRules());
        equal(List.of("listener", "key-one", "key-two", List.of(AccessRights.LISTEN)),
            List.of(key.getKeyName(), key.getPrimaryKey(), key.getSecondaryKey(), key.getAccessRights()));
        client.createQueue("start", new CreateQueueOptions().setForwardTo("end"));
        client.createTopic("market");
        client.createSubscription("market", "apples", "apples", new CreateSubscriptionOptions().setForwardTo("start"),
            new CreateRuleOptions(new SqlRuleFilter("sys.Label LIKE 'apple%'"))
                .setAction(new SqlRuleAction("SET fruit = TRUE")));
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.publisher("market");
            sender.sendMessage(message("pears").setSubject("pears"));
            sender.sendMessage(message("apples").setSubject("apples"));
            ServiceBusReceiverClient receiver = clients.receiver("end");
            ServiceBusReceivedMessage got = one(receiver);
            equal("apples", got.getBody().toString());
            equal(true, got.getApplicationProperties().get("fruit"));
            receiver.complete(got);
            client.createRule("market", "rest", "apples", new CreateRuleOptions(new TrueRuleFilter()));
            client.deleteRule("market", "apples", "apples");
            sender.sendMessage(message("plums").setSubject("plums"));
            equal(List.of("plums"), take(receiver, 1));
            sender.sendMessage(message("cherries"));
        }
        try (Clients clients = new Clients(withKey(world, "listener", "key-two"))) {
            equal(List.of("cherries"), take(clients.receiver("end"), 1));
            equal(ServiceBusFailureReason.UNAUTHORIZED,
                refusal(() -> clients.sender("end").sendMessage(message("a"))).getReason());
        }
    }

    private static void again(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        try (Clients clients = new Clients(world)) {
            clients.publisher("topic").sendMessages(List.of(message("a"), message("b")));
            ServiceBusReceiverClient receiver = clients.subscriber("topic", "all");
            one(receiver);
            client.deleteSubscription("topic", "all");
            AmqpException told = refusedReceiving(receiver);
            equal("amqp:not-found", told.getErrorCondition().getErrorCondition());
        }
        client.createSubscription("topic", "all");
        equal(0L, client.getSubscriptionRuntimeProperties("topic", "all").getTotalMessageCount());
        try (Clients clients = new Clients(world)) {
            clients.publisher("topic").sendMessage(message("c"));
            equal(List.of("c"), take(clients.subscriber("topic", "all"), 1));
        }
    }

    // --- refusals, and other ways ---

    private static void refused(World world) throws Exception {
        ServiceBusAdministrationClient client = Administration.client(world.connectionString());
        List<Action> there = List.of(
            () -> client.createQueue("QUEUE"),
            () -> client.createTopic("topic"),
            () -> client.createTopic("queue"),
            () -> client.createSubscription("topic", "all"),
            () -> client.createRule("topic", "$Default", "all", new CreateRuleOptions(new TrueRuleFilter())));
        for (Action action : there) {
            equal(409, thrown(ResourceExistsException.class, action).getResponse().getStatusCode());
        }
        List<Action> notThere = List.of(
            () -> client.getQueue("nowhere"),
            () -> client.getTopic("nowhere"),
            () -> client.getSubscription("topic", "nobody"),
            () -> client.getRule("topic", "all", "nothing"),
            () -> client.getQueueRuntimeProperties("nowhere"),
            () -> client.deleteQueue("nowhere"),
            () -> client.deleteSubscription("topic", "nobody"),
            () -> client.deleteRule("topic", "all", "nothing"),
            () -> client.createSubscription("nowhere", "all"),
            () -> client.listRules("topic", "nobody").forEach(rule -> {}));
        for (Action action : notThere) {
            thrown(ResourceNotFoundException.class, action);
        }
        QueueProperties queue = client.getQueue("queue");
        List<Action> bad = List.of(
            () -> client.createQueue("bad", new CreateQueueOptions().setLockDuration(Duration.ofMinutes(6))),
            () -> client.createQueue("bad", new CreateQueueOptions().setMaxDeliveryCount(-1)),
            () -> client.createQueue("bad", new CreateQueueOptions().setForwardTo("nowhere")),
            () -> client.createQueue("bad name!"),
            () -> client.createRule("topic", "bad", "all", new CreateRuleOptions(new SqlRuleFilter("color ="))),
            () -> client.updateQueue(queue.setForwardTo("nowhere")));
        for (Action action : bad) {
            HttpResponseException refused = thrown(HttpResponseException.class, action);
            equal(400, refused.getResponse().getStatusCode());
        }
        equal(false, client.getQueueExists("bad"));
        String wrong = withKey(world, "RootManageSharedAccessKey", "wrong");
        equal(401, thrown(ClientAuthenticationException.class, () -> Administration.client(wrong).getQueue("queue"))
            .getResponse().getStatusCode());
    }

    private static void plain(World world) throws Exception {
        ServiceBusAdministrationClient client =
            Administration.client(world.connectionString(), new ProtocolPolicy("http", true));
        client.createQueue("new", new CreateQueueOptions().setMaxDeliveryCount(7));
        equal(7, client.getQueue("new").getMaxDeliveryCount());
    }
}
