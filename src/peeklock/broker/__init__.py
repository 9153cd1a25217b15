"""A namespace and its behaviour: entities, queues, locks, rights. It has no sockets and no performatives."""
