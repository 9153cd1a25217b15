"""A small blocking AMQP 1.0 client on the same engine as the broker."""
