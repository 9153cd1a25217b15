// The argument of a scenario: its broker, and operations on the broker that clients cannot do.

import java.util.List;

interface World {
    /** Plain, with the emulator's flag. */
    String connectionString();

    /** Moves the broker's clock. */
    void advance(int seconds) throws Exception;

    /** The broker's time in milliseconds. */
    long now() throws Exception;

    /** Active, deferred and scheduled messages of a queue or subscription. */
    List<Long> counters(String path) throws Exception;
}
