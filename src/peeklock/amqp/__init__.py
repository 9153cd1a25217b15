"""AMQP 1.0 as bytes and values: types, performatives, frames, message sections. No state, no I/O."""
