"""Attacks of hostile clients on a running broker, and the checks after each attack; docs/hostile.md has the table."""
