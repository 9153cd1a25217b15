"""A small blocking AMQP 1.0 client on the same engine as the broker, for any AMQP 1.0 peer.

The client of the administration API is `peeklock.client.administration`; sending and receiving do not load it.
"""

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.types import Array, Int, Symbol, Timestamp, UInt, ULong
from peeklock.client.batches import Batch, batch_limit, fill_batches
from peeklock.client.connection import Connection, connect
from peeklock.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    LinkClosed,
    RequestRefused,
    SendRejected,
    SettlementFailed,
    Timeout,
)
from peeklock.client.management import Management
from peeklock.client.receiver import ReceivedMessage, ReceiveMode, Receiver
from peeklock.client.requests import Requester
from peeklock.client.sender import Sender, Sent
from peeklock.client.strings import Endpoint, parse_endpoint
from peeklock.client.tokens import sas_token
from peeklock.client.transactions import Transaction, Transactions

__all__ = [
    "Array",
    "AuthenticationFailed",
    "Batch",
    "ClientError",
    "Connection",
    "ConnectionLost",
    "Endpoint",
    "Header",
    "Int",
    "LinkClosed",
    "Management",
    "Message",
    "Properties",
    "ReceiveMode",
    "ReceivedMessage",
    "Receiver",
    "RequestRefused",
    "Requester",
    "SendRejected",
    "Sender",
    "Sent",
    "SettlementFailed",
    "Symbol",
    "Timeout",
    "Timestamp",
    "Transaction",
    "Transactions",
    "UInt",
    "ULong",
    "batch_limit",
    "connect",
    "fill_batches",
    "parse_endpoint",
    "sas_token",
]
