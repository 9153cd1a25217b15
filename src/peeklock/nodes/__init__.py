"""Where AMQP links meet the broker: sending, receiving, $cbs."""
