"""The broker's ends of AMQP links: sending, receiving, `$management`, `$cbs` and the transaction coordinator."""
