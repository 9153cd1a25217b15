"""AMQP 1.0 as bytes and values: types, performatives, frames, message sections. No state, no I/O."""

# Importing a composite makes it known to `decode_composite`, so all of them are known from the start.
from peeklock.amqp import message as message
from peeklock.amqp import performatives as performatives
