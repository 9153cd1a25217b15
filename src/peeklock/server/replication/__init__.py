"""A broker on several nodes, of which one at a time is active. The others relay connections to it."""
