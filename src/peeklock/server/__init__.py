"""The server: sockets, tasks, time, TLS, WebSocket, configuration, logs, and protocol detection on one port."""
