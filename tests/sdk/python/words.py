"""Shared by the two programs for Python: messages, settings, rules and errors of the SDK in JSON.

`conformance/program.py` has the commands. `blocking.py` and `asynchronous.py` call the SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceModifiedError,
    ResourceNotFoundError,
)
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
    exceptions,
)
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

Json = dict[str, Any]

KINDS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.MessagingEntityNotFoundError, "not-found"),
    (exceptions.MessagingEntityDisabledError, "disabled"),
    (exceptions.MessageNotFoundError, "message-not-found"),
    (exceptions.MessageLockLostError, "lock-lost"),
    (exceptions.SessionLockLostError, "session-lock-lost"),
    (exceptions.SessionCannotBeLockedError, "session-taken"),
    (exceptions.MessageSizeExceededError, "too-large"),
    (exceptions.OperationTimeoutError, "timeout"),
    (exceptions.ServiceBusAuthenticationError, "unauthorized"),
    (exceptions.ServiceBusAuthorizationError, "unauthorized"),
    (exceptions.ServiceBusQuotaExceededError, "quota"),
    (ResourceExistsError, "exists"),
    (ResourceNotFoundError, "not-found"),
    (ResourceModifiedError, "modified"),
    (ClientAuthenticationError, "unauthorized"),
)

SETTINGS = {
    "lock_ms": "lock_duration",
    "max_delivery": "max_delivery_count",
    "ttl_ms": "default_message_time_to_live",
    "sessions": "requires_session",
    "duplicates": "requires_duplicate_detection",
    "window_ms": "duplicate_detection_history_time_window",
    "dead_letter_expired": "dead_lettering_on_message_expiration",
    "forward_to": "forward_to",
    "forward_dead_to": "forward_dead_lettered_messages_to",
    "status": "status",
    "metadata": "user_metadata",
}

COUNTS = {
    "active": "active_message_count",
    "dead": "dead_letter_message_count",
    "scheduled": "scheduled_message_count",
    "transfer_dead": "transfer_dead_letter_message_count",
    "total": "total_message_count",
    "subscriptions": "subscription_count",
    "size": "size_in_bytes",
}

TEXTS = {
    "id": "message_id",
    "session": "session_id",
    "subject": "subject",
    "correlation": "correlation_id",
    "content_type": "content_type",
    "to": "to",
    "reply_to": "reply_to",
    "reply_session": "reply_to_session_id",
    "partition": "partition_key",
}


def error_of(error: BaseException) -> Json:
    kind = next((kind for known, kind in KINDS if isinstance(error, known)), None)
    if kind is None:
        status = error.status_code if isinstance(error, HttpResponseError) else None
        kind = {400: "bad-request"}.get(status or 0, type(error).__name__)
    return {"kind": kind, "text": f"{type(error).__name__}: {error}"}


# --- clients ---


def client_options(asked: Json) -> Json:
    options: Json = {"retry_total": asked["retries"], "retry_backoff_factor": 0.2, "connection_verify": asked["trust"]}
    if asked["transport"] == "websocket":
        options["transport_type"] = TransportType.AmqpOverWebsocket
    return options


def receiver_options(asked: Json) -> Json:
    options: Json = {"prefetch_count": asked.get("prefetch") or 0}
    if asked.get("deletes"):
        options["receive_mode"] = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    if asked.get("part"):
        parts = {"dead": ServiceBusSubQueue.DEAD_LETTER, "transfer": ServiceBusSubQueue.TRANSFER_DEAD_LETTER}
        options["sub_queue"] = parts[asked["part"]]
    return options


def session_options(asked: Json) -> Json:
    session = asked.get("session")
    wait = asked.get("wait") or 5
    return {"session_id": NEXT_AVAILABLE_SESSION if session is None else session, "max_wait_time": wait}


# --- messages ---


def message_from(told: Json) -> ServiceBusMessage:
    body = "x" * told["size"] if "size" in told else told["body"]
    options: Json = {name: told[word] for word, name in TEXTS.items() if word in told}
    if "ttl" in told:
        options["time_to_live"] = timedelta(milliseconds=told["ttl"])
    if "at" in told:
        options["scheduled_enqueue_time_utc"] = moment(told["at"])
    return ServiceBusMessage(body, application_properties=told.get("properties"), **options)


def message_to(message: Any, handle: str) -> Json:
    told: Json = {word: getattr(message, name) for word, name in TEXTS.items()}
    return told | {
        "handle": handle,
        "body": b"".join(message.body).decode(),
        "properties": {text(name): text(value) for name, value in (message.application_properties or {}).items()},
        "sequence": message.sequence_number,
        "delivery_count": message.delivery_count,
        "state": message.state.name.lower(),
        "enqueued": milliseconds(message.enqueued_time_utc),
        "scheduled": milliseconds(message.scheduled_enqueue_time_utc),
        "locked_until": milliseconds(message.locked_until_utc),
        "expires": milliseconds(message.expires_at_utc),
        "reason": message.dead_letter_reason,
        "description": message.dead_letter_error_description,
        "source": message.dead_letter_source,
    }


def text(value: Any) -> Any:
    """The SDK leaves text in properties as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


# --- administration ---


def settings_from(told: Json) -> Json:
    def value(word: str, said: Any) -> Any:
        return timedelta(milliseconds=said) if word.endswith("_ms") else said

    return {SETTINGS[word]: value(word, said) for word, said in told.items()}


def settings_to(found: Any) -> Json:
    told: Json = {}
    for word, name in SETTINGS.items():
        value = getattr(found, name, None)
        if isinstance(value, timedelta):
            value = round(value.total_seconds() * 1000)
        told[word] = getattr(value, "value", value)
    return told


def counts_to(found: Any) -> Json:
    return {word: getattr(found, name, None) for word, name in COUNTS.items()}


def rule_from(told: Json) -> Json:
    given = told["filter"]
    made: Any
    if "sql" in given:
        made = SqlRuleFilter(given["sql"])
    elif "correlation" in given:
        tested = given["correlation"]
        made = CorrelationRuleFilter(
            label=tested.get("subject"),
            correlation_id=tested.get("correlation"),
            message_id=tested.get("id"),
            properties=tested.get("properties") or {},
        )
    else:
        made = TrueRuleFilter() if "true" in given else FalseRuleFilter()
    return {"filter": made, "action": SqlRuleAction(told["action"]) if told.get("action") else None}


def rule_to(rule: Any) -> Json:
    found = rule.filter
    kinds: dict[type, Callable[[], Json]] = {
        SqlRuleFilter: lambda: {"sql": found.sql_expression},
        CorrelationRuleFilter: lambda: {
            "correlation": {
                "subject": found.label,
                "correlation": found.correlation_id,
                "id": found.message_id,
                "properties": {text(name): text(value) for name, value in (found.properties or {}).items()},
            }
        },
        TrueRuleFilter: lambda: {"true": True},
        FalseRuleFilter: lambda: {"false": True},
    }
    return {"name": rule.name, "filter": kinds[type(found)](), "action": getattr(rule.action, "sql_expression", None)}
