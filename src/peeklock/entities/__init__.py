"""Definitions of entities: settings, names, keys and filter rules. Used by the broker, the client and the CLI."""
