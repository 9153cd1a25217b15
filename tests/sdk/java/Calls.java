// Executes the commands of conformance/program.py with azure-messaging-servicebus.

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusErrorContext;
import com.azure.messaging.servicebus.ServiceBusErrorSource;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessageContext;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

final class Calls {
    interface Call {
        Object run(JsonNode asked) throws Exception;
    }

    private static final ExecutorService SETTLING = Executors.newCachedThreadPool();

    private final Map<String, Object> kept = new ConcurrentHashMap<>();
    private final AtomicInteger last = new AtomicInteger();
    private final Map<String, Call> known = new HashMap<>();

    Calls() {
        known.put("reset", this::reset);
        known.put("close", asked -> done(() -> this.<AutoCloseable>of(asked, "handle").close()));
        known.put("open", this::open);
        known.put("sender", this::sender);
        known.put("send", this::send);
        known.put("fill", this::fill);
        known.put("schedule", this::schedule);
        known.put("cancel", asked -> done(() ->
            this.<ServiceBusSenderClient>of(asked, "sender").cancelScheduledMessages(numbers(asked))));
        known.put("receiver", this::receiver);
        known.put("accept", this::accept);
        known.put("receive", asked -> told(receiverOf(asked)
            .receiveMessages(asked.get("count").asInt(), Said.seconds(asked.get("wait")))));
        known.put("deferred", asked -> told(receiverOf(asked).receiveDeferredMessageBatch(numbers(asked))));
        known.put("peek", asked -> told(Said.has(asked, "start")
            ? receiverOf(asked).peekMessages(asked.get("count").asInt(), asked.get("start").asLong())
            : receiverOf(asked).peekMessages(asked.get("count").asInt())));
        known.put("settle", this::settle);
        known.put("renew", asked -> Said.milliseconds(
            receiverOf(asked).renewMessageLock(this.<ServiceBusReceivedMessage>of(asked, "message"))));
        known.put("state", asked -> {
            byte[] state = receiverOf(asked).getSessionState();
            return state == null ? null : new String(state);
        });
        known.put("set_state", asked -> done(() -> receiverOf(asked)
            .setSessionState(Said.has(asked, "state") ? asked.get("state").asText().getBytes() : null)));
        known.put("renew_session", asked -> Said.milliseconds(receiverOf(asked).renewSessionLock()));
        known.put("process", this::process);
        known.put("add_rule", asked -> withRules(asked, rules -> {
            rules.createRule(asked.get("name").asText(), Said.rule(asked));
            return null;
        }));
        known.put("rules", asked -> withRules(asked, rules -> {
            List<Object> found = new ArrayList<>();
            rules.listRules().forEach(rule -> found.add(Said.rule(rule)));
            return found;
        }));
        known.put("remove_rule", asked -> withRules(asked, rules -> {
            rules.deleteRule(asked.get("name").asText());
            return null;
        }));
        known.put("begin", asked -> keep(this.<ServiceBusSenderClient>of(asked, "sender").createTransaction()));
        known.put("commit", asked -> done(() ->
            this.<ServiceBusSenderClient>of(asked, "sender").commitTransaction(transaction(asked))));
        known.put("roll_back", asked -> done(() ->
            this.<ServiceBusSenderClient>of(asked, "sender").rollbackTransaction(transaction(asked))));
        AdministrationCalls.addTo(known, this);
    }

    /** This SDK has a connection for each builder, which is closed with the last of its clients. */
    private record Opened(ServiceBusClientBuilder builder, List<AutoCloseable> clients) implements AutoCloseable {
        Opened(ServiceBusClientBuilder builder) {
            this(builder, new CopyOnWriteArrayList<>());
        }

        @Override
        public void close() throws Exception {
            for (AutoCloseable client : clients) {
                client.close();
            }
        }
    }

    private String keep(JsonNode asked, AutoCloseable client) {
        this.<Opened>of(asked, "client").clients().add(client);
        return keep(client);
    }

    private ServiceBusClientBuilder builder(JsonNode asked) {
        return this.<Opened>of(asked, "client").builder();
    }

    Object run(JsonNode asked) throws Exception {
        Call call = known.get(asked.get("call").asText());
        if (call == null) {
            throw new UnsupportedOperationException("this SDK has no " + asked.get("call").asText());
        }
        return call.run(asked);
    }

    String keep(Object thing) {
        String handle = "h" + last.incrementAndGet();
        kept.put(handle, thing);
        return handle;
    }

    @SuppressWarnings("unchecked")
    <T> T of(JsonNode asked, String word) {
        return (T) kept.get(asked.get(word).asText());
    }

    static Object done(Steps.Action action) throws Exception {
        action.run();
        return null;
    }

    private ServiceBusReceiverClient receiverOf(JsonNode asked) {
        return of(asked, "receiver");
    }

    private ServiceBusTransactionContext transaction(JsonNode asked) {
        return Said.has(asked, "transaction") ? of(asked, "transaction") : null;
    }

    private static List<Long> numbers(JsonNode asked) {
        List<Long> numbers = new ArrayList<>();
        asked.get("numbers").forEach(number -> numbers.add(number.asLong()));
        return numbers;
    }

    private List<Object> told(Iterable<ServiceBusReceivedMessage> messages) {
        List<Object> told = new ArrayList<>();
        messages.forEach(message -> told.add(Said.message(message, keep(message))));
        return told;
    }

    // --- clients ---

    private Object reset(JsonNode asked) {
        List<Object> open = new ArrayList<>(kept.values());
        kept.clear();
        Thread closing = new Thread(() -> {
            for (Object thing : open) {
                if (thing instanceof AutoCloseable client) {
                    try {
                        client.close();
                    } catch (Exception gone) {
                        // The scenario may have ended its connection or its entity.
                    }
                }
            }
        });
        closing.setDaemon(true);
        closing.start();
        try {
            closing.join(5_000);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
        return null;
    }

    private Object open(JsonNode asked) {
        ServiceBusClientBuilder builder =
            new ServiceBusClientBuilder().connectionString(asked.get("connection").asText());
        if (asked.get("transport").asText().equals("websocket")) {
            builder.transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
        }
        if (asked.path("across").asBoolean()) {
            builder.enableCrossEntityTransactions();
        }
        int retries = asked.get("retries").asInt();
        AmqpRetryOptions options = new AmqpRetryOptions().setMaxRetries(retries);
        if (retries > 0) {
            // Otherwise the pauses between ten attempts double up to a minute, and a call takes minutes to fail. They must
            // be allowed to be as long as the first, which is nearly five seconds when the SDK takes the service for busy.
            options.setTryTimeout(Duration.ofSeconds(5)).setMaxDelay(Duration.ofSeconds(6));
        }
        return keep(new Opened(builder.retryOptions(options)));
    }

    // --- sending ---

    private Object sender(JsonNode asked) {
        ServiceBusClientBuilder builder = builder(asked);
        return keep(asked, Said.has(asked, "topic")
            ? builder.sender().topicName(asked.get("topic").asText()).buildClient()
            : builder.sender().queueName(asked.get("queue").asText()).buildClient());
    }

    private Object send(JsonNode asked) {
        ServiceBusSenderClient sender = of(asked, "sender");
        ServiceBusTransactionContext transaction = transaction(asked);
        if (!asked.path("batch").asBoolean()) {
            for (JsonNode said : asked.get("messages")) {
                if (transaction == null) {
                    sender.sendMessage(Said.message(said));
                } else {
                    sender.sendMessage(Said.message(said), transaction);
                }
            }
            return null;
        }
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        for (JsonNode said : asked.get("messages")) {
            if (!batch.tryAddMessage(Said.message(said))) {
                throw new IllegalStateException("it does not fit");
            }
        }
        sender.sendMessages(batch);
        return null;
    }

    private Object fill(JsonNode asked) {
        ServiceBusSenderClient sender = of(asked, "sender");
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        boolean fits = true;
        while (fits) {
            fits = batch.tryAddMessage(Said.message(asked));
        }
        sender.sendMessages(batch);
        return batch.getCount();
    }

    private Object schedule(JsonNode asked) {
        List<ServiceBusMessage> messages = new ArrayList<>();
        asked.get("messages").forEach(said -> messages.add(Said.message(said)));
        OffsetDateTime at = Said.moment(asked.get("at").asLong());
        ServiceBusTransactionContext transaction = transaction(asked);
        ServiceBusSenderClient sender = of(asked, "sender");
        return transaction == null
            ? sender.scheduleMessages(messages, at) : sender.scheduleMessages(messages, at, transaction);
    }

    // --- receiving ---

    private Object receiver(JsonNode asked) {
        ServiceBusClientBuilder.ServiceBusReceiverClientBuilder builder =
            builder(asked).receiver();
        Map<String, SubQueue> parts =
            Map.of("dead", SubQueue.DEAD_LETTER_QUEUE, "transfer", SubQueue.TRANSFER_DEAD_LETTER_QUEUE);
        builder.subQueue(parts.getOrDefault(asked.path("part").asText(), SubQueue.NONE));
        builder.receiveMode(mode(asked)).maxAutoLockRenewDuration(Duration.ZERO).disableAutoComplete();
        builder.prefetchCount(asked.path("prefetch").asInt());
        return keep(asked, Said.has(asked, "topic")
            ? builder.topicName(asked.get("topic").asText())
                .subscriptionName(asked.get("subscription").asText()).buildClient()
            : builder.queueName(asked.get("queue").asText()).buildClient());
    }

    private Object accept(JsonNode asked) {
        ServiceBusClientBuilder.ServiceBusSessionReceiverClientBuilder builder =
            builder(asked).sessionReceiver();
        builder.receiveMode(mode(asked)).maxAutoLockRenewDuration(Duration.ZERO).disableAutoComplete();
        ServiceBusSessionReceiverClient acceptor = Said.has(asked, "topic")
            ? builder.topicName(asked.get("topic").asText())
                .subscriptionName(asked.get("subscription").asText()).buildClient()
            : builder.queueName(asked.get("queue").asText()).buildClient();
        keep(asked, acceptor);
        ServiceBusReceiverClient receiver = Said.has(asked, "session")
            ? acceptor.acceptSession(asked.get("session").asText()) : acceptor.acceptNextSession();
        Map<String, Object> found = new HashMap<>();
        found.put("handle", keep(asked, receiver));
        found.put("session", receiver.getSessionId());
        found.put("until", null); // this SDK returns it only when a lock is renewed
        return found;
    }

    private static ServiceBusReceiveMode mode(JsonNode asked) {
        return asked.path("deletes").asBoolean()
            ? ServiceBusReceiveMode.RECEIVE_AND_DELETE : ServiceBusReceiveMode.PEEK_LOCK;
    }

    /**
     * A settlement whose link is lost at the wrong moment may never be answered by this SDK. An application that limits
     * the time that it waits sees a failure, and so does the scenario.
     */
    private Object settle(JsonNode asked) throws Exception {
        try {
            return CompletableFuture.supplyAsync(() -> settled(asked), SETTLING).get(60, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception cause ? cause : failed;
        }
    }

    private Object settled(JsonNode asked) {
        ServiceBusReceiverClient receiver = receiverOf(asked);
        ServiceBusReceivedMessage message = of(asked, "message");
        ServiceBusTransactionContext transaction = transaction(asked);
        Map<String, Object> properties = Said.properties(asked.get("properties"));
        switch (asked.get("how").asText()) {
            case "complete" -> receiver.complete(message, new CompleteOptions().setTransactionContext(transaction));
            case "abandon" -> receiver.abandon(message,
                new AbandonOptions().setPropertiesToModify(properties).setTransactionContext(transaction));
            case "defer" -> receiver.defer(message,
                new DeferOptions().setPropertiesToModify(properties).setTransactionContext(transaction));
            default -> receiver.deadLetter(message, new DeadLetterOptions().setPropertiesToModify(properties)
                .setDeadLetterReason(Said.text(asked, "reason"))
                .setDeadLetterErrorDescription(Said.text(asked, "description"))
                .setTransactionContext(transaction));
        }
        return null;
    }

    // --- receiving as it comes ---

    private Object process(JsonNode asked) throws Exception {
        List<Object> handled = new ArrayList<>();
        CompletableFuture<Void> enough = new CompletableFuture<>();
        int count = asked.get("count").asInt();
        int concurrent = Math.max(1, asked.path("concurrent").asInt());
        // Who is alone in a handler of several never gets out of it.
        CyclicBarrier together = new CyclicBarrier(concurrent);
        Duration work = Said.seconds(asked.path("work"));
        boolean fails = asked.path("fails").asBoolean();
        Consumer<ServiceBusReceivedMessageContext> handler = context -> {
            boolean last;
            synchronized (handled) {
                handled.add(Said.message(context.getMessage(), ""));
                last = handled.size() >= count;
            }
            try {
                together.await();
                Thread.sleep(work.toMillis());
            } catch (InterruptedException | BrokenBarrierException stop) {
                throw new IllegalStateException(stop);
            }
            if (fails && context.getMessage().getDeliveryCount() == 0) {
                throw new IllegalStateException("on purpose");
            }
            if (last) {
                CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS).execute(() -> enough.complete(null));
            }
        };
        Consumer<ServiceBusErrorContext> failed = failure -> {
            if (!fails || failure.getErrorSource() != ServiceBusErrorSource.USER_CALLBACK) {
                enough.completeExceptionally(failure.getException());
            }
        };
        Duration renewal = asked.path("renew").asBoolean() ? Duration.ofMinutes(1) : Duration.ZERO;
        ServiceBusClientBuilder builder = builder(asked);
        ServiceBusProcessorClient processor;
        if (Said.has(asked, "session")) {
            processor = builder.sessionProcessor().queueName(asked.get("queue").asText()).processMessage(handler)
                .processError(failed).maxAutoLockRenewDuration(renewal).buildProcessorClient();
        } else {
            ServiceBusClientBuilder.ServiceBusProcessorClientBuilder made = builder.processor()
                .processMessage(handler).processError(failed).maxAutoLockRenewDuration(renewal)
                .maxConcurrentCalls(concurrent);
            processor = Said.has(asked, "topic")
                ? made.topicName(asked.get("topic").asText()).subscriptionName(asked.get("subscription").asText())
                    .buildProcessorClient()
                : made.queueName(asked.get("queue").asText()).buildProcessorClient();
        }
        try (ServiceBusProcessorClient running = processor) {
            running.start();
            enough.get(60, TimeUnit.SECONDS);
        }
        return handled;
    }

    // --- rules by the messaging client ---

    private Object withRules(JsonNode asked, RuleCall call) {
        try (ServiceBusRuleManagerClient rules = builder(asked).ruleManager()
                .topicName(asked.get("topic").asText()).subscriptionName(asked.get("subscription").asText())
                .buildClient()) {
            return call.run(rules);
        }
    }

    private interface RuleCall {
        Object run(ServiceBusRuleManagerClient rules);
    }
}
