// The argument of a scenario: its broker, and operations on the broker that clients cannot do.

import java.util.List;
import java.util.Map;

interface World {
    /** Plain, with the emulator's flag. */
    String connectionString();

    /** Of its TLS port: host and port. */
    String endpoint();

    /** Moves the broker's clock. */
    void advance(int seconds) throws Exception;

    /** How many messages a queue or subscription holds, by state: active, scheduled, dead. */
    Map<String, Integer> counters(String path) throws Exception;

    /** The paths of all queues, topics and subscriptions, sorted. */
    List<String> entities() throws Exception;

    /** The rules of a subscription, as SQL. */
    List<String> rules(String path) throws Exception;
}
