"""Definitions of entities: settings, names, authorization rules and rules. Used by the broker, client and CLI."""
