// Runs the scenarios that standard input names, one at a time. The other side is test_java.py; lines have fields
// between tabs. From there: "run", the scenario, the connection string. From here: "ask" and a question, which is
// answered by a line, until "passed", or "failed" and why.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

final class Run {
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final PrintStream OUT = System.out;

    private Run() {}

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // so that nobody else writes between our lines
        say("scenarios", String.join("|", Scenarios.ALL.keySet()));
        String line;
        while ((line = IN.readLine()) != null) {
            String[] fields = line.split("\t");
            try {
                Scenarios.ALL.get(fields[1]).run(new Asking(fields[2]));
                say("passed");
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                say("failed", trace.toString().replace("\t", "    ").replace("\n", "\\n"));
            }
        }
        System.exit(0); // the SDK's threads would keep us here
    }

    private static void say(String... fields) {
        OUT.println(String.join("\t", fields));
        OUT.flush();
    }

    private record Asking(String connectionString) implements Scenarios.World {
        @Override
        public void advance(int seconds) throws Exception {
            ask("advance", Integer.toString(seconds));
        }

        @Override
        public long now() throws Exception {
            return Long.parseLong(ask("now"));
        }

        @Override
        public List<Long> counters(String queue) throws Exception {
            return Arrays.stream(ask("counters", queue).split(" ")).map(Long::valueOf).collect(Collectors.toList());
        }

        private static String ask(String... question) throws Exception {
            say("ask", String.join("\t", question));
            return IN.readLine();
        }
    }
}
