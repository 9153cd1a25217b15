"""The protocol state of an AMQP connection, as client or server: bytes in, events out. No I/O, no clock."""
