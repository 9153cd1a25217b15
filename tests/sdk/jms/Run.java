// Runs the scenarios that standard input names, one at a time. The other side is scenario_runner.py, and says how they
// speak: in JSON, one line for each message.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class Run {
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final PrintStream OUT = System.out;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Scenario> ALL = new LinkedHashMap<>();

    static {
        ALL.putAll(AzureScenarios.ALL);
        ALL.putAll(PriorityScenarios.ALL);
        ALL.putAll(ProducerScenarios.ALL);
        ALL.putAll(QueueScenarios.ALL);
        ALL.putAll(TemporaryScenarios.ALL);
        ALL.putAll(TopicScenarios.ALL);
    }

    private Run() {}

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // so that no library writes between these lines
        say(Map.of("scenarios", ALL.keySet()));
        String line;
        while ((line = IN.readLine()) != null) {
            JsonNode asked = JSON.readTree(line);
            Map<String, Object> outcome = new HashMap<>();
            outcome.put("name", asked.get("run").asText());
            outcome.put("error", null);
            JsonNode brokers = asked.get("brokers");
            try {
                ALL.get(asked.get("run").asText())
                    .run(new Asking(brokers.get("plain").asText(), brokers.get("endpoint").asText()));
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                outcome.put("error", trace.toString());
            }
            say(outcome);
        }
        System.exit(0); // the library's threads would keep us here
    }

    private static synchronized void say(Object message) throws IOException {
        OUT.println(JSON.writeValueAsString(message));
        OUT.flush();
    }

    private record Asking(String connectionString, String endpoint) implements World {
        @Override
        public void advance(int seconds) throws Exception {
            ask(Map.of("ask", "advance", "seconds", seconds));
        }

        @Override
        public Map<String, Integer> counters(String path) throws Exception {
            Map<String, Integer> found = new HashMap<>();
            ask(Map.of("ask", "counters", "queue", path))
                .fields().forEachRemaining(each -> found.put(each.getKey(), each.getValue().asInt()));
            return found;
        }

        @Override
        public List<String> entities() throws Exception {
            return texts(ask(Map.of("ask", "entities")));
        }

        @Override
        public List<String> rules(String path) throws Exception {
            return texts(ask(Map.of("ask", "rules", "subscription", path)));
        }

        private static List<String> texts(JsonNode found) {
            List<String> texts = new ArrayList<>();
            found.forEach(each -> texts.add(each.asText()));
            return texts;
        }

        private static JsonNode ask(Map<String, Object> question) throws Exception {
            say(question);
            return JSON.readTree(IN.readLine()).get("answer");
        }
    }
}
