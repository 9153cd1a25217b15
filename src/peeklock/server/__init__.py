"""Sockets, tasks, time, TLS, WebSocket and the look at a connection's first bytes."""
