"""A shop whose orders go through a topic, as something to run the pipelines on. `make demo` runs it."""
