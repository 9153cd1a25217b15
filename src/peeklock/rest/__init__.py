"""Sending, receiving and settling over HTTP: the REST API of Service Bus."""
