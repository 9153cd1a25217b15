"""What a namespace does: entities, queues, locks, rights. No sockets and no performatives."""
