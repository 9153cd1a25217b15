"""The Spark data source `servicebus` and what it is made of; `peeklock[spark]` installs what it needs."""
