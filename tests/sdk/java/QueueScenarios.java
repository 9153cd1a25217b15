// What an application does with queues through azure-messaging-servicebus, as short programs that fail by throwing.
// Names begin with the verb of a sentence; test_java.py reads them from this text.

import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class QueueScenarios extends Steps {
    static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.put("send, receive and complete", QueueScenarios::complete);
        ALL.put("send a batch and receive it in order", QueueScenarios::batch);
        ALL.put("receive and delete", QueueScenarios::receiveAndDelete);
        ALL.put("abandon, defer and dead-letter", QueueScenarios::settle);
        ALL.put("peek without taking", QueueScenarios::peek);
        ALL.put("renew a lock", QueueScenarios::renew);
        ALL.put("schedule, cancel and receive what is due", QueueScenarios::schedule);
        ALL.put("receive a session and keep its state", QueueScenarios::session);
        ALL.put("receive the next free session", QueueScenarios::nextSession);
        ALL.put("commit a transaction that completes and sends", QueueScenarios::commit);
        ALL.put("roll back a transaction that completes and sends", QueueScenarios::rollBack);
        ALL.put("settle in every way within a transaction", QueueScenarios::settleWithin);
        ALL.put("schedule within a transaction", QueueScenarios::scheduleWithin);
        ALL.put("complete a deferred message within a transaction", QueueScenarios::deferredWithin);
        ALL.put("receive from one queue and send to another in a transaction", QueueScenarios::crossEntity);
        ALL.put("be refused a second entity without cross-entity transactions", QueueScenarios::secondEntity);
        ALL.put("be refused a queue that is not there", QueueScenarios::notThere);
    }

    private QueueScenarios() {}

    // --- queues ---

    private static void complete(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusMessage sent = message("hello").setMessageId("the-id").setSubject("the-subject");
            sent.getApplicationProperties().put("number", 7);
            clients.sender("queue").sendMessage(sent);
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            ServiceBusReceivedMessage got = one(receiver);
            equal("hello", got.getBody().toString());
            equal("the-id", got.getMessageId());
            equal("the-subject", got.getSubject());
            equal(7, got.getApplicationProperties().get("number"));
            equal(1L, got.getSequenceNumber());
            equal(0L, got.getDeliveryCount());
            receiver.complete(got);
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void batch(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            ServiceBusMessageBatch batch = sender.createMessageBatch();
            for (int number = 0; number < 10; number++) {
                equal(true, batch.tryAddMessage(message("message " + number)));
            }
            sender.sendMessages(batch);
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            List<ServiceBusReceivedMessage> got = receive(receiver, 10);
            for (int number = 0; number < 10; number++) {
                equal("message " + number, got.get(number).getBody().toString());
                receiver.complete(got.get(number));
            }
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void receiveAndDelete(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.sender("queue").sendMessage(message("once"));
            ServiceBusReceiverClient receiver = clients.keep(clients.builder.receiver().queueName("queue")
                .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient());
            equal("once", one(receiver).getBody().toString());
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void settle(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            sender.sendMessage(message("a"));
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            receiver.abandon(one(receiver), new AbandonOptions().setPropertiesToModify(Map.of("tried", 1)));
            ServiceBusReceivedMessage again = one(receiver);
            equal(1L, again.getDeliveryCount());
            equal(1, again.getApplicationProperties().get("tried"));
            receiver.defer(again);
            equal(List.of(0L, 1L, 0L), world.counters("queue"));
            ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(again.getSequenceNumber());
            equal("a", deferred.getBody().toString());
            receiver.deadLetter(deferred,
                new DeadLetterOptions().setDeadLetterReason("why").setDeadLetterErrorDescription("because"));
            ServiceBusReceiverClient letters = clients.keep(
                clients.builder.receiver().queueName("queue").subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient());
            ServiceBusReceivedMessage letter = one(letters);
            equal("why", letter.getDeadLetterReason());
            equal("because", letter.getDeadLetterErrorDescription());
            letters.complete(letter);
            equal(List.of(0L, 0L, 0L), world.counters("queue/$deadletterqueue"));
        }
    }

    private static void peek(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            sender.sendMessages(List.of(message("a"), message("b"), message("c")));
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            equal("a", receiver.peekMessage().getBody().toString());
            List<String> peeked = new ArrayList<>();
            receiver.peekMessages(10, 2).forEach(found -> peeked.add(found.getBody().toString()));
            equal(List.of("b", "c"), peeked);
            equal(null, receiver.peekMessage(4));
            equal(List.of(3L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void renew(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.sender("queue").sendMessage(message("a"));
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            ServiceBusReceivedMessage got = one(receiver);
            world.advance(40);
            OffsetDateTime until = receiver.renewMessageLock(got);
            equal(world.now() + 60_000, until.toInstant().toEpochMilli());
            world.advance(40);
            receiver.complete(got);
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void schedule(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            long first = sender.scheduleMessage(message("due"), in(world, 60));
            long second = sender.scheduleMessage(message("cancelled"), in(world, 60));
            equal(true, first < second);
            equal(List.of(0L, 0L, 2L), world.counters("queue"));
            sender.cancelScheduledMessage(second);
            world.advance(61);
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            ServiceBusReceivedMessage got = one(receiver);
            equal("due", got.getBody().toString());
            receiver.complete(got);
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void notThere(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusException refused =
                refusal(() -> clients.sender("nowhere").sendMessage(message("a")));
            equal("MESSAGING_ENTITY_NOT_FOUND", refused.getReason().toString());
        }
    }

    // --- sessions ---

    private static void session(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("sessions");
            sender.sendMessages(List.of(
                message("a1").setSessionId("a"), message("b1").setSessionId("b"), message("a2").setSessionId("a")));
            ServiceBusSessionReceiverClient acceptor = clients.sessions("sessions");
            ServiceBusReceiverClient receiver = clients.keep(acceptor.acceptSession("a"));
            List<ServiceBusReceivedMessage> got = receive(receiver, 2);
            equal("a1", got.get(0).getBody().toString());
            equal("a2", got.get(1).getBody().toString());
            receiver.setSessionState("half-way".getBytes());
            equal("half-way", new String(receiver.getSessionState()));
            OffsetDateTime until = receiver.renewSessionLock();
            equal(world.now() + 60_000, until.toInstant().toEpochMilli());
            for (ServiceBusReceivedMessage message : got) {
                receiver.complete(message);
            }
            equal(List.of(1L, 0L, 0L), world.counters("sessions"));
        }
    }

    private static void nextSession(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.sender("sessions").sendMessage(message("x").setSessionId("only"));
            ServiceBusReceiverClient receiver = clients.keep(clients.sessions("sessions").acceptNextSession());
            equal("only", receiver.getSessionId());
            receiver.complete(one(receiver));
            equal(List.of(0L, 0L, 0L), world.counters("sessions"));
        }
    }

    // --- transactions ---

    private static void commit(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            sender.sendMessage(message("question"));
            ServiceBusReceivedMessage got = one(receiver);
            ServiceBusTransactionContext transaction = sender.createTransaction();
            receiver.complete(got, new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(message("answer"), transaction);
            sender.sendMessages(List.of(message("more"), message("and more")), transaction);
            equal(List.of(1L, 0L, 0L), world.counters("queue"));
            sender.commitTransaction(transaction);
            equal(List.of(3L, 0L, 0L), world.counters("queue"));
            List<ServiceBusReceivedMessage> answers = receive(receiver, 3);
            equal("answer", answers.get(0).getBody().toString());
            equal("and more", answers.get(2).getBody().toString());
        }
    }

    private static void rollBack(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            sender.sendMessage(message("question"));
            ServiceBusReceivedMessage got = one(receiver);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(got, new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(message("never"), transaction);
            receiver.rollbackTransaction(transaction);
            equal(List.of(1L, 0L, 0L), world.counters("queue"));
            world.advance(61);
            ServiceBusReceivedMessage again = one(receiver);
            equal("question", again.getBody().toString());
            receiver.complete(again);
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void settleWithin(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            sender.sendMessages(List.of(message("a"), message("b"), message("c"), message("d")));
            List<ServiceBusReceivedMessage> got = receive(receiver, 4);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(got.get(0), new CompleteOptions().setTransactionContext(transaction));
            receiver.abandon(got.get(1), new AbandonOptions().setTransactionContext(transaction));
            receiver.defer(got.get(2), new DeferOptions().setTransactionContext(transaction));
            receiver.deadLetter(got.get(3),
                new DeadLetterOptions().setTransactionContext(transaction).setDeadLetterReason("why"));
            equal(List.of(4L, 0L, 0L), world.counters("queue"));
            receiver.commitTransaction(transaction);
            equal(List.of(1L, 1L, 0L), world.counters("queue"));
            equal(List.of(1L, 0L, 0L), world.counters("queue/$deadletterqueue"));
        }
    }

    private static void scheduleWithin(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            ServiceBusTransactionContext kept = sender.createTransaction();
            ServiceBusTransactionContext undone = sender.createTransaction();
            sender.scheduleMessage(message("kept"), in(world, 60), kept);
            sender.scheduleMessage(message("undone"), in(world, 60), undone);
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
            sender.commitTransaction(kept);
            sender.rollbackTransaction(undone);
            equal(List.of(0L, 0L, 1L), world.counters("queue"));
            world.advance(61);
            equal("kept", one(clients.receiver("queue")).getBody().toString());
        }
    }

    private static void deferredWithin(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient sender = clients.sender("queue");
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            sender.sendMessage(message("a"));
            ServiceBusReceivedMessage got = one(receiver);
            receiver.defer(got);
            ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(got.getSequenceNumber());
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(deferred, new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(message("b"), transaction);
            equal(List.of(0L, 1L, 0L), world.counters("queue"));
            receiver.commitTransaction(transaction);
            equal(List.of(1L, 0L, 0L), world.counters("queue"));
        }
    }

    private static void crossEntity(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            clients.sender("queue").sendMessage(message("question"));
        }
        try (Clients clients = new Clients(world)) {
            clients.builder.enableCrossEntityTransactions();
            ServiceBusReceiverClient receiver = clients.receiver("queue");
            ServiceBusSenderClient sender = clients.sender("other");
            ServiceBusReceivedMessage got = one(receiver);
            ServiceBusTransactionContext undone = receiver.createTransaction();
            sender.sendMessage(message("never"), undone);
            receiver.rollbackTransaction(undone);
            ServiceBusTransactionContext transaction = receiver.createTransaction();
            receiver.complete(got, new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(message("answer"), transaction);
            equal(List.of(1L, 0L, 0L), world.counters("queue"));
            equal(List.of(0L, 0L, 0L), world.counters("other"));
            receiver.commitTransaction(transaction);
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
            equal(List.of(1L, 0L, 0L), world.counters("other"));
        }
        try (Clients clients = new Clients(world)) {
            equal("answer", one(clients.receiver("other")).getBody().toString());
        }
    }

    private static void secondEntity(World world) throws Exception {
        try (Clients clients = new Clients(world)) {
            ServiceBusSenderClient first = clients.sender("queue");
            ServiceBusSenderClient second = clients.sender("other");
            ServiceBusTransactionContext transaction = first.createTransaction();
            first.sendMessage(message("a"), transaction);
            second.sendMessage(message("b"), transaction); // the SDK does not look at what becomes of it
            refusal(() -> first.commitTransaction(transaction));
            equal(List.of(0L, 0L, 0L), world.counters("queue"));
            equal(List.of(0L, 0L, 0L), world.counters("other"));
        }
    }
}
