"""Hostile clients against a running broker, and what has to hold after each of them; docs/hostile.md has the table."""
