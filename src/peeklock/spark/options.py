"""The options of the data source: each declared once, read from text, checked before anything is opened.

This module knows the values of an option and its uses; the readers and writers know its effects.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self, get_args

from peeklock.client import Connection, connect, parse_endpoint
from peeklock.entities.names import DEAD_LETTER_SUFFIX, TRANSFER_DEAD_LETTER_SUFFIX, subscription_path
from peeklock.spark import option_values as values

Use = Literal["read", "readStream", "write"]
USES: Final[tuple[Use, ...]] = get_args(Use)
READS: Final[tuple[Use, ...]] = ("read", "readStream")
STREAM: Final[tuple[Use, ...]] = ("readStream",)
WRITE: Final[tuple[Use, ...]] = ("write",)

PEEK, CLAIM, RECEIVE_AND_DELETE = "peek", "claim", "receiveAndDelete"
MODES: Final[Mapping[str, tuple[str, ...]]] = {
    "read": (PEEK,),
    "readStream": (CLAIM, PEEK, RECEIVE_AND_DELETE),
    "write": (),
}
"""The values of `mode` for each use; the first is the default."""

AUTO, BROKER, DEFER = "auto", "broker", "defer"

SUB_QUEUES: Final = {
    "deadLetter": f"/{DEAD_LETTER_SUFFIX}",
    "transferDeadLetter": f"/{TRANSFER_DEAD_LETTER_SUFFIX}",
}
MOST_PARTITIONS: Final = 10_000
MOST_MESSAGES: Final = 100_000
"""The default number of messages in a micro-batch. A higher one makes a query hardly faster."""
MOST_BYTES: Final = 256 << 20
MOST_HANDED_OUT: Final = 10_000
"""The default for modes in which messages pass through the driver."""

# Spark adds some of its own options to the options of a source; they are ignored.
_OF_SPARK: Final = {"path", "paths", "checkpointlocation", "queryname", "outputmode", "mergeschema", "replacewhere"}
_OF_SPARK_PREFIXES: Final = ("spark.", "__")


class OptionError(ValueError):
    """An option is missing, unknown or has a value that is not allowed; the text names option, value and rule."""


@dataclass(frozen=True, slots=True)
class Option:
    """Describes one option. Its default is that of the field of `Options`."""

    name: str
    read: Callable[[str], Any]
    rule: str
    doc: str
    uses: tuple[Use, ...] = USES
    secret: bool = False
    default_text: str = ""
    """The default as the documentation writes it, where it is not a plain value."""


def _option(
    name: str,
    read: Callable[[str], Any],
    rule: str,
    doc: str,
    *,
    default: Any = None,
    uses: tuple[Use, ...] = USES,
    secret: bool = False,
    default_text: str = "",
) -> Any:
    declared = Option(name, read, rule, doc, uses, secret, default_text)
    return field(default=default, repr=not secret, metadata={"option": declared})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one read or write, made by `parse`. `use` is what they were parsed for."""

    use: Use
    connection_string: str = _option(
        "connectionString",
        values.connection_string,
        "a connection string (Endpoint=sb://host/;SharedAccessKeyName=…;SharedAccessKey=…) or amqp://host:port",
        "The connection string of the namespace, with its address and key. Required.",
        default="",
        secret=True,
        default_text="none, required",
    )
    queue: str | None = _option(
        "queue", values.entity, "the name of a queue", "The queue. Without it, `topic` or the string's `EntityPath`."
    )
    topic: str | None = _option(
        "topic", values.entity, "the name of a topic", "The topic: to write to, or with `subscription` to read from."
    )
    subscription: str | None = _option(
        "subscription", values.entity, "the name of a subscription", "The subscription of `topic`.", uses=READS
    )
    sub_queue: str | None = _option(
        "subQueue",
        values.choice(*SUB_QUEUES),
        "deadLetter or transferDeadLetter",
        "Read this sub-queue of the entity.",
        uses=READS,
    )
    mode: str = _option(
        "mode",
        values.choice(PEEK, CLAIM, RECEIVE_AND_DELETE),
        "peek, claim or receiveAndDelete",
        "How messages are read: `peek` leaves them in the entity, `claim` removes each and reads it exactly once, "
        "`receiveAndDelete` at most once. A batch read supports `peek` only.",
        default="",
        uses=READS,
        default_text="`peek` for read, `claim` for readStream",
    )
    num_partitions: int = _option(
        "numPartitions",
        values.integer(1, MOST_PARTITIONS),
        f"a number from 1 to {MOST_PARTITIONS}",
        "The most tasks of a read.",
        default=4,
        uses=READS,
    )
    starting_sequence_number: int | None = _option(
        "startingSequenceNumber",
        values.integer(0),
        "a number of 0 or more",
        "The first sequence number to read. With `mode=peek`.",
        uses=READS,
        default_text="the oldest message",
    )
    ending_sequence_number: int | None = _option(
        "endingSequenceNumber",
        values.integer(0),
        "a number of 0 or more",
        "The last sequence number to read. With `mode=peek`.",
        uses=READS,
        default_text="read: the newest when the read starts; readStream: no end",
    )
    starting_enqueued_time_ms: int | None = _option(
        "startingEnqueuedTime",
        values.moment_ms,
        "a time such as 2030-01-31T12:00:00Z (UTC without a zone), or Unix milliseconds",
        "Read only messages enqueued at this time or later. With `mode=peek`.",
        uses=READS,
        default_text="all",
    )
    max_messages_per_trigger: int | None = _option(
        "maxMessagesPerTrigger",
        values.integer(1),
        "a number of 1 or more",
        "The most messages in a micro-batch.",
        uses=STREAM,
        default_text="`100000`; `10000` with `mode=receiveAndDelete`, where messages pass through the driver",
    )
    max_bytes_per_trigger: int | None = _option(
        "maxBytesPerTrigger",
        values.size,
        "a number of bytes, also as 64k, 16m or 1g",
        "The approximate total size of the messages in a micro-batch, which has at least one message.",
        uses=STREAM,
        default_text="`256m` with `mode=claim`, else no limit",
    )
    max_wait_s: float = _option(
        "maxWait",
        values.seconds(0),
        "a time up to a day: 500ms, 5s, 2m",
        "How long a micro-batch waits for more messages once it has one.",
        default=0.2,
        uses=STREAM,
        default_text="200ms",
    )
    poll_interval_s: float = _option(
        "pollInterval",
        values.seconds(0.01),
        "a time from 10ms to a day: 250ms, 1s",
        "How often an idle stream asks for messages, at most.",
        default=0.25,
        uses=STREAM,
        default_text="250ms",
    )
    claim_name: str | None = _option(
        "claimName",
        values.text,
        "a name",
        "Names what this query has claimed; 1 to 128 characters. Two queries on one entity need a name each.",
        uses=STREAM,
        default_text="made of the entity's address",
    )
    claim_protocol: str = _option(
        "claimProtocol",
        values.choice(AUTO, BROKER, DEFER),
        "auto, broker or defer",
        "How messages are claimed: with `broker` the broker stores the claims; with `defer` each message is deferred, "
        "which works with every service. `auto` is `broker` if the service offers it, else `defer`.",
        default=AUTO,
        uses=STREAM,
    )
    fail_on_data_loss: bool = _option(
        "failOnDataLoss",
        values.flag,
        "true or false",
        "Whether a claimed message that no longer exists fails the query, or is only logged.",
        default=True,
        uses=STREAM,
    )
    application_properties: str = _option(
        "applicationProperties",
        values.choice("strings", "json"),
        "strings or json",
        'The values of the column `application_properties`: plain text, or JSON with the type, such as `{"int": 5}`.',
        default="strings",
    )
    on_bad_message: str = _option(
        "onBadMessage",
        values.bad_messages,
        "fail, raw (reading), drop or path:<folder> (writing)",
        "How to handle a message that cannot be read (`fail`; `raw`: its bytes become the body) or written (`fail`; "
        "`drop`: it is logged and counted; `path:<folder>`: it is written there as a JSON line with the reason).",
        default="fail",
    )
    write_name: str | None = _option(
        "writeName",
        values.text,
        "a name",
        "The name of the write. Rows without a `message_id` get the same ids at each write with this name. "
        "Not needed for streams.",
        uses=WRITE,
        default_text="a new one for each write",
    )
    send_retries: int = _option(
        "sendRetries",
        values.integer(0, 1000),
        "a number from 0 to 1000",
        "How often messages are sent again, with growing pauses of up to 5 s, while the service accepts none.",
        default=8,
        uses=WRITE,
    )
    ca_file: str | None = _option(
        "caFile",
        values.text,
        "the path of a PEM file, on every machine",
        "A certificate authority to trust besides the authorities of the system, for TLS.",
        default_text="none",
    )
    request_timeout_s: float = _option(
        "requestTimeout",
        values.seconds(0.1),
        "a time from 100ms to a day: 30s, 2m",
        "How long to wait for an answer from the service.",
        default=30.0,
        default_text="30s",
    )

    @classmethod
    def parse(cls, given: Mapping[str, str], *, use: Use) -> Self:
        """Parse the options that Spark passes, for one use; OptionError names what is wrong."""
        found = check(given)
        for name in found:
            option = OPTIONS[name]
            if use not in option.uses:
                raise OptionError(f"option '{option.name}' is not for {use}; it is for {' and '.join(option.uses)}")
        options = cls(use=use, **found)
        if not options.mode and use != "write":
            object.__setattr__(options, "mode", MODES[use][0])
        options._check_together()
        if use == "readStream":
            options._set_limits()
        return options

    @property
    def entity(self) -> str | None:
        """The queue, topic or subscription; None only for a writer whose rows name the entity."""
        if self.queue is not None:
            return self.queue
        if self.topic is not None:
            return self.topic if self.subscription is None else subscription_path(self.topic, self.subscription)
        return parse_endpoint(self.connection_string).entity_path

    @property
    def address(self) -> str:
        """The address of links: `q`, `t` or `t/Subscriptions/s`, with the sub-queue."""
        entity = self.entity
        if entity is None:
            raise OptionError("option 'queue' or 'topic' is required")
        return entity + (SUB_QUEUES[self.sub_queue] if self.sub_queue else "")

    @property
    def claim(self) -> str:
        """The name under which messages are claimed."""
        return self.claim_name or f"spark:{self.address}"

    @property
    def typed_json(self) -> bool:
        return self.application_properties == "json"

    def connect(self) -> Connection:
        """Open a new connection. A connection belongs to one thread and cannot be sent to another process."""
        tls = None if self.ca_file is None else ssl.create_default_context()
        if tls is not None:
            tls.load_verify_locations(self.ca_file)
        return connect(self.connection_string, tls=tls, timeout=self.request_timeout_s)

    def _set_limits(self) -> None:
        if self.max_messages_per_trigger is None:
            most = MOST_HANDED_OUT if self.mode == RECEIVE_AND_DELETE else MOST_MESSAGES
            object.__setattr__(self, "max_messages_per_trigger", most)
        if self.max_bytes_per_trigger is None and self.mode == CLAIM:
            object.__setattr__(self, "max_bytes_per_trigger", MOST_BYTES)

    def _check_together(self) -> None:
        if not self.connection_string:
            raise OptionError("option 'connectionString' is required")
        if self.queue is not None and (self.topic is not None or self.subscription is not None):
            raise OptionError("option 'queue' cannot be combined with 'topic' or 'subscription'")
        if self.subscription is not None and self.topic is None:
            raise OptionError("option 'subscription' requires 'topic'")
        if self.use == "write":
            self._check_bad_messages(("fail", "drop"), may_be_folder=True)
            return
        if self.topic is not None and self.subscription is None:
            raise OptionError("option 'topic' requires 'subscription' for reading, since a topic stores no messages")
        if self.mode not in MODES[self.use]:
            allowed = " or ".join(MODES[self.use])
            raise OptionError(f"option 'mode' is '{self.mode}', but for {self.use} it must be {allowed}")
        self._check_bad_messages(("fail", "raw"), may_be_folder=False)
        _ = self.address
        first, last = self.starting_sequence_number, self.ending_sequence_number
        if first is not None and last is not None and last < first:
            raise OptionError(
                f"option 'endingSequenceNumber' is {last}, but must not be less than 'startingSequenceNumber' ({first})"
            )
        if self.mode != PEEK:
            for name in ("starting_sequence_number", "ending_sequence_number", "starting_enqueued_time_ms"):
                if getattr(self, name) is not None:
                    raise OptionError(f"option '{OPTIONS[name].name}' is for mode=peek only, not for mode={self.mode}")
        if self.max_bytes_per_trigger is not None and self.mode == PEEK:
            raise OptionError(
                "option 'maxBytesPerTrigger' is not for mode=peek, which does not know the sizes in advance"
            )
        if self.claim_name is not None and self.mode != CLAIM:
            raise OptionError(f"option 'claimName' is for mode=claim only, not for mode={self.mode}")
        if self.claim_protocol != AUTO and self.mode != CLAIM:
            raise OptionError(f"option 'claimProtocol' is for mode=claim only, not for mode={self.mode}")

    def _check_bad_messages(self, allowed: tuple[str, ...], *, may_be_folder: bool) -> None:
        value = self.on_bad_message
        if value not in allowed and not (may_be_folder and value.startswith("path:")):
            choices = " or ".join((*allowed, *(("path:<folder>",) if may_be_folder else ())))
            raise OptionError(f"option 'onBadMessage' is '{value}', but for {self.use} it must be {choices}")


OPTIONS: Final[Mapping[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(Options) if "option" in each.metadata
}
"""The options by field name."""
_FIELDS: Final = {option.name.lower(): name for name, option in OPTIONS.items()}


def check(given: Mapping[str, str]) -> dict[str, Any]:
    """Check each option by itself, for any use, and return the values by field; OptionError names what is wrong."""
    found: dict[str, Any] = {}
    for key, text in given.items():
        name = key.lower()
        if name in _OF_SPARK or name.startswith(_OF_SPARK_PREFIXES):
            continue
        if name not in _FIELDS:
            raise OptionError(_unknown(key))
        option = OPTIONS[_FIELDS[name]]
        try:
            found[_FIELDS[name]] = option.read(str(text))
        except (ValueError, OverflowError) as error:
            raise OptionError(_refusal(option, str(text), error)) from None
    return found


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key.lower(), _FIELDS, n=1)
    known = ", ".join(option.name for option in OPTIONS.values())
    if close:
        return f"option '{key}' is not known; did you mean '{OPTIONS[_FIELDS[close[0]]].name}'?"
    return f"option '{key}' is not known; use one of {known}"


def _refusal(option: Option, text: str, error: Exception) -> str:
    if not option.secret:
        return f"option '{option.name}' is '{text}', but must be {option.rule}"
    return f"option '{option.name}' must be {option.rule}: {redact(str(error), text)}"


_SECRETS: Final = re.compile(r"(?i)(?:SharedAccessKey|SharedAccessSignature)\s*=\s*([^;]+)|//[^/@\s]*:([^/@\s]+)@")


def redact(text: str, connection_string: str) -> str:
    """Remove the secrets of the connection string from a text for logs and errors."""
    for match in _SECRETS.finditer(connection_string):
        text = text.replace((match[1] or match[2]).strip(), "***")
    return text
