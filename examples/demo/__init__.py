"""A demonstration of the pipelines on the orders of an invented shop. `make demo` runs it."""
