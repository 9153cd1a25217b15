// Runs the scenarios that standard input names, one at a time. The other side is scenario_runner.py, and says how they
// speak: in JSON, one line for each message. Or it does single things as they come, side by side, for scenarios that
// are the same through every SDK: the other side is conformance/program.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

final class Run {
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final PrintStream OUT = System.out;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Scenario> ALL = new LinkedHashMap<>();
    private static final Calls CALLS = new Calls();
    private static final ExecutorService THREADS = Executors.newCachedThreadPool();

    static {
        ALL.putAll(AdministrationScenarios.ALL);
        ALL.putAll(QueueScenarios.ALL);
        ALL.putAll(RuleScenarios.ALL);
        ALL.putAll(TopicScenarios.ALL);
    }

    private Run() {}

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // so that no library writes between these lines
        say(Map.of("scenarios", ALL.keySet()));
        String line;
        while ((line = IN.readLine()) != null) {
            JsonNode asked = JSON.readTree(line);
            if (asked.has("call")) {
                THREADS.execute(() -> answer(asked));
                continue;
            }
            Map<String, Object> outcome = new HashMap<>();
            outcome.put("name", asked.get("run").asText());
            outcome.put("error", null);
            try {
                ALL.get(asked.get("run").asText()).run(new Asking(asked.get("brokers").get("plain").asText()));
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                outcome.put("error", trace.toString());
            }
            say(outcome);
        }
        System.exit(0); // the SDK's threads would keep us here
    }

    private static void answer(JsonNode asked) {
        Map<String, Object> answer = new HashMap<>();
        answer.put("id", asked.get("id").asInt());
        try {
            answer.put("value", CALLS.run(asked));
        } catch (Throwable failure) {
            answer.put("error", Said.error(failure));
        }
        try {
            say(answer);
        } catch (IOException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static synchronized void say(Object message) throws IOException {
        OUT.println(JSON.writeValueAsString(message));
        OUT.flush();
    }

    private record Asking(String connectionString) implements World {
        @Override
        public void advance(int seconds) throws Exception {
            ask(Map.of("ask", "advance", "seconds", seconds));
        }

        @Override
        public long now() throws Exception {
            return ask(Map.of("ask", "now")).asLong();
        }

        @Override
        public List<Long> counters(String path) throws Exception {
            JsonNode found = ask(Map.of("ask", "counters", "queue", path));
            return List.of(
                found.get("active").asLong(), found.get("deferred").asLong(), found.get("scheduled").asLong());
        }

        private static JsonNode ask(Map<String, Object> question) throws Exception {
            say(question);
            return JSON.readTree(IN.readLine()).get("answer");
        }
    }
}
