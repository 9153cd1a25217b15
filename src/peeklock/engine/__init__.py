"""One AMQP connection's protocol state, in either role: bytes in, events out. No I/O, no clock."""
