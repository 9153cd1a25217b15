"""Messages over HTTP, as the REST interface of Service Bus has it."""
