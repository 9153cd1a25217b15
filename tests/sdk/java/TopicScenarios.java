// What an application does with topics, subscriptions and forwarding through azure-messaging-servicebus.
// Names begin with the verb of a sentence; test_java.py reads them from this text, and has the entities.

import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class TopicScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("send to a topic and receive from the subscriptions that want it", TopicScenarios::publish);
        ALL.put("send a batch to a topic and receive it in order", TopicScenarios::batch);
        ALL.put("receive a copy that an action changed", TopicScenarios::act);
        ALL.put("schedule to a topic, and cancel", TopicScenarios::schedule);
        ALL.put("receive a session of a subscription and keep its state", TopicScenarios::session);
        ALL.put("peek, defer and dead-letter in a subscription", TopicScenarios::settle);
        ALL.put("commit and roll back transactions that send to a topic", TopicScenarios::transaction);
        ALL.put("receive from a subscription and send to a topic in a transaction", TopicScenarios::crossEntity);
        ALL.put("receive messages that a queue and a subscription forwarded", TopicScenarios::forward);
        ALL.put("receive forwarded dead letters", TopicScenarios::forwardDeadLetters);
        ALL.put("find messages that cannot be forwarded in the transfer dead-letter queue", TopicScenarios::astray);
        ALL.put("send duplicates that are dropped", TopicScenarios::duplicates);
        ALL.put("be refused disabled entities", TopicScenarios::disabled);
        ALL.put("be refused a subscription that is not there", TopicScenarios::notThere);
    }

    private static final List<Long> EMPTY = List.of(0L, 0L, 0L);

    private TopicScenarios() {}

    // --- topics ---

    private static void publish(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.publisher("topic");
            sender.sendMessage(message("for all"));
            sender.sendMessage(message("red one", Map.of("color", "red")));
            sender.sendMessage(message("an order").setSubject("order").setMessageId("the-id"));
            equal(List.of(3L, 0L, 0L), world.counters("topic/subscriptions/all"));
            equal(List.of("for all", "red one", "an order"), take(clients.subscriber("topic", "all"), 3));
            equal(List.of("red one"), take(clients.subscriber("topic", "red"), 1));
            ServiceBusReceiverClient orders = clients.subscriber("TOPIC", "Orders");
            ServiceBusReceivedMessage order = one(orders);
            equal("an order", order.getBody().toString());
            equal("the-id", order.getMessageId());
            equal("order", order.getSubject());
            orders.complete(order);
            for (String name : List.of("all", "red", "orders", "big")) {
                equal(EMPTY, world.counters("topic/subscriptions/" + name));
            }
        }
    }

    private static void batch(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.publisher("topic");
            ServiceBusMessageBatch batch = sender.createMessageBatch();
            List<String> all = new ArrayList<>();
            for (int number = 0; number < 10; number++) {
                String color = number % 2 == 0 ? "red" : "blue";
                equal(true, batch.tryAddMessage(message("message " + number, Map.of("color", color))));
                all.add("message " + number);
            }
            sender.sendMessages(batch);
            equal(all, take(clients.subscriber("topic", "all"), 10));
            equal(List.of("message 0", "message 2", "message 4", "message 6", "message 8"),
                take(clients.subscriber("topic", "red"), 5));
        }
    }

    private static void act(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.publisher("topic").sendMessage(message("much", Map.of("amount", 11, "secret", "x")));
            ServiceBusReceivedMessage changed = one(clients.subscriber("topic", "big"));
            equal("much", changed.getBody().toString());
            equal("big", changed.getSubject());
            equal(Map.of("amount", 11, "half", 5.5, "RuleName", "mark"), changed.getApplicationProperties());
            ServiceBusReceivedMessage unchanged = one(clients.subscriber("topic", "all"));
            equal(null, unchanged.getSubject());
            equal(Map.of("amount", 11, "secret", "x"), unchanged.getApplicationProperties());
        }
    }

    private static void schedule(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.publisher("topic");
            sender.scheduleMessage(message("due"), in(world, 60));
            long cancelled = sender.scheduleMessage(message("cancelled"), in(world, 60));
            equal(EMPTY, world.counters("topic/subscriptions/all"));
            sender.cancelScheduledMessage(cancelled);
            world.advance(61);
            equal(List.of("due"), take(clients.subscriber("topic", "all"), 1));
            equal(EMPTY, world.counters("topic/subscriptions/all"));
        }
    }

    private static void session(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.publisher("talks").sendMessages(List.of(
                message("a1").setSessionId("a"), message("b1").setSessionId("b"), message("a2").setSessionId("a")));
            ServiceBusReceiverClient receiver = clients.keep(clients.sessions("talks", "all").acceptSession("a"));
            receiver.setSessionState("half-way".getBytes());
            equal("half-way", new String(receiver.getSessionState()));
            equal(List.of("a1", "a2"), take(receiver, 2));
            ServiceBusReceiverClient next = clients.keep(clients.sessions("talks", "all").acceptNextSession());
            equal("b", next.getSessionId());
            equal(List.of("b1"), take(next, 1));
        }
    }

    private static void settle(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.publisher("topic").sendMessage(message("a"));
            ServiceBusReceiverClient receiver = clients.subscriber("topic", "all");
            equal("a", receiver.peekMessage().getBody().toString());
            ServiceBusReceivedMessage got = one(receiver);
            receiver.defer(got);
            equal(List.of(0L, 1L, 0L), world.counters("topic/subscriptions/all"));
            receiver.deadLetter(receiver.receiveDeferredMessage(got.getSequenceNumber()),
                new DeadLetterOptions().setDeadLetterReason("why").setDeadLetterErrorDescription("because"));
            ServiceBusReceiverClient letters = clients.subscriber("topic", "all", SubQueue.DEAD_LETTER_QUEUE);
            ServiceBusReceivedMessage letter = one(letters);
            equal("why", letter.getDeadLetterReason());
            equal("because", letter.getDeadLetterErrorDescription());
            letters.complete(letter);
            equal(EMPTY, world.counters("topic/subscriptions/all/$deadletterqueue"));
        }
    }

    // --- transactions ---

    private static void transaction(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.publisher("topic");
            ServiceBusTransactionContext undone = sender.createTransaction();
            sender.sendMessage(message("never", Map.of("color", "red")), undone);
            sender.rollbackTransaction(undone);
            ServiceBusTransactionContext transaction = sender.createTransaction();
            sender.sendMessage(message("one"), transaction);
            sender.sendMessages(List.of(message("two", Map.of("color", "red")), message("three")), transaction);
            equal(EMPTY, world.counters("topic/subscriptions/all"));
            sender.commitTransaction(transaction);
            equal(List.of("one", "two", "three"), take(clients.subscriber("topic", "all"), 3));
            equal(List.of("two"), take(clients.subscriber("topic", "red"), 1));
            equal(EMPTY, world.counters("topic/subscriptions/red"));
        }
    }

    private static void crossEntity(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.publisher("topic").sendMessage(message("question"));
        }
        try (Clients clients = new Clients(world)) {
            clients.builder.enableCrossEntityTransactions();
            ServiceBusReceiverClient receiver = clients.subscriber("topic", "all");
            ServiceBusSenderClient sender = clients.publisher("relay");
            ServiceBusReceivedMessage got = one(receiver);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(got, new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(message("answer"), transaction);
            equal(List.of(1L, 0L, 0L), world.counters("topic/subscriptions/all"));
            equal(EMPTY, world.counters("relay/subscriptions/all"));
            receiver.commitTransaction(transaction);
            equal(EMPTY, world.counters("topic/subscriptions/all"));
        }
        try (Clients clients = new Clients(world)) {
            equal(List.of("answer"), take(clients.subscriber("relay", "all"), 1));
        }
    }

    // --- what becomes of messages ---

    private static void forward(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.sender("first").sendMessage(message("over two queues").setMessageId("the-id"));
            ServiceBusReceiverClient receiver = clients.receiver("other");
            ServiceBusReceivedMessage got = one(receiver);
            equal("over two queues", got.getBody().toString());
            equal("the-id", got.getMessageId());
            receiver.complete(got);
            clients.publisher("relay").sendMessage(message("from a topic"));
            equal(List.of("from a topic"), take(receiver, 1));
            equal(List.of("from a topic"), take(clients.subscriber("relay", "all"), 1));
            for (String name : List.of("first", "second", "relay/subscriptions/onward", "other")) {
                equal(EMPTY, world.counters(name));
            }
            UnsupportedOperationException refused =
                thrown(UnsupportedOperationException.class, () -> one(clients.receiver("first")));
            contains("'first' forwards its messages", refused.getMessage());
        }
    }

    private static void forwardDeadLetters(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.sender("letters").sendMessage(message("a"));
            ServiceBusReceiverClient receiver = clients.receiver("letters");
            receiver.deadLetter(one(receiver), new DeadLetterOptions().setDeadLetterReason("why"));
            ServiceBusReceivedMessage letter = one(clients.receiver("other"));
            equal("a", letter.getBody().toString());
            equal("why", letter.getDeadLetterReason());
            equal("letters", letter.getDeadLetterSource());
            equal(EMPTY, world.counters("letters/$deadletterqueue"));
        }
    }

    private static void astray(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.sender("astray").sendMessage(message("without a session"));
            clients.publisher("relay").sendMessage(message("without a session").setSubject("astray"));
            List<ServiceBusReceiverClient> places = List.of(
                clients.receiver("astray", SubQueue.TRANSFER_DEAD_LETTER_QUEUE),
                clients.subscriber("relay", "astray", SubQueue.TRANSFER_DEAD_LETTER_QUEUE));
            for (ServiceBusReceiverClient letters : places) {
                ServiceBusReceivedMessage letter = one(letters);
                equal("without a session", letter.getBody().toString());
                equal("Session ID is null.", letter.getDeadLetterReason());
                letters.complete(letter);
            }
            equal(EMPTY, world.counters("astray/$transfer/$deadletterqueue"));
            equal(EMPTY, world.counters("relay/subscriptions/astray/$Transfer/$DeadLetterQueue"));
        }
    }

    private static void duplicates(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient queue = clients.sender("unique");
            ServiceBusSenderClient topic = clients.publisher("news");
            for (String body : List.of("first", "again")) {
                queue.sendMessage(message(body).setMessageId("1"));
                topic.sendMessage(message(body).setMessageId("1"));
            }
            equal(List.of(1L, 0L, 0L), world.counters("unique"));
            equal(List.of(1L, 0L, 0L), world.counters("news/subscriptions/all"));
            world.advance(601);
            queue.sendMessage(message("later").setMessageId("1"));
            topic.sendMessage(message("later").setMessageId("1"));
            equal(List.of("first", "later"), take(clients.receiver("unique"), 2));
            equal(List.of("first", "later"), take(clients.subscriber("news", "all"), 2));
        }
    }

    // --- refusals ---

    private static void disabled(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            equal(ServiceBusFailureReason.MESSAGING_ENTITY_DISABLED,
                refusal(() -> clients.sender("closed").sendMessage(message("a"))).getReason());
            for (ServiceBusReceiverClient receiver : List.of(
                clients.receiver("closed"), clients.subscriber("news", "closed"))) {
                AmqpException refused = refusedReceiving(receiver);
                equal("com.microsoft:entity-disabled", refused.getErrorCondition().getErrorCondition());
                equal(false, refused.isTransient());
            }
        }
    }

    private static void notThere(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            equal(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND,
                refusal(() -> clients.publisher("nowhere").sendMessage(message("a"))).getReason());
            for (ServiceBusReceiverClient receiver : List.of(
                clients.subscriber("topic", "nobody"), clients.subscriber("nowhere", "all"))) {
                AmqpException refused = refusedReceiving(receiver);
                equal("amqp:not-found", refused.getErrorCondition().getErrorCondition());
                equal(false, refused.isTransient());
            }
        }
    }
}
