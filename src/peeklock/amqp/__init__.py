"""AMQP 1.0 as bytes and values: types, performatives, frames, message sections. No state, no I/O."""

# Importing a composite registers it with `decode_composite`: here all of them are imported.
from peeklock.amqp import message as message
from peeklock.amqp import performatives as performatives
