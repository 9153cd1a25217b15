"""A small blocking AMQP 1.0 client on the same engine as the broker, for any AMQP 1.0 peer."""

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.types import Array, Int, Symbol, Timestamp, UInt, ULong
from peeklock.client.connection import Connection, connect
from peeklock.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    LinkClosed,
    SendRejected,
    SettlementFailed,
    Timeout,
)
from peeklock.client.receiver import ReceivedMessage, ReceiveMode, Receiver
from peeklock.client.requests import Requester
from peeklock.client.sender import Sender, Sent
from peeklock.client.strings import Endpoint, parse_endpoint
from peeklock.client.tokens import sas_token

__all__ = [
    "Array",
    "AuthenticationFailed",
    "ClientError",
    "Connection",
    "ConnectionLost",
    "Endpoint",
    "Header",
    "Int",
    "LinkClosed",
    "Message",
    "Properties",
    "ReceiveMode",
    "ReceivedMessage",
    "Receiver",
    "Requester",
    "SendRejected",
    "Sender",
    "Sent",
    "SettlementFailed",
    "Symbol",
    "Timeout",
    "Timestamp",
    "UInt",
    "ULong",
    "connect",
    "parse_endpoint",
    "sas_token",
]
