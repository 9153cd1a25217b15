"""What an entity is told: its settings, names, keys and rules. The broker, the client and the command line share it."""
