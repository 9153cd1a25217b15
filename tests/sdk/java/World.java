// What a scenario is given: a broker of its own, and what no client can do with it.

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
