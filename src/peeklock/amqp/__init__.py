"""AMQP 1.0 as bytes and values: types, performatives, frames, message sections. No state, no I/O."""

# Importing a composite registers it with `decode_composite`. These imports register all of them.
from peeklock.amqp import message as message
from peeklock.amqp import performatives as performatives
