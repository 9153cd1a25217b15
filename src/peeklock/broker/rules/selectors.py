"""JMS message selectors of links and subscriptions, translated to SQL filters.

A selector is translated to the language of rules, in which the names of JMS are system properties (`jms`). So there is
one compiler with one set of limits, and a rule from a selector is stored and shown like other rules.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lark import Token, Tree

from peeklock.broker.rules.errors import SqlError, sentence_of, shown
from peeklock.broker.rules.parser import parse
from peeklock.broker.rules.sql import Filter, compile_filter
from peeklock.broker.rules.values import MAX_INTEGER, MIN_INTEGER
from peeklock.broker.rules.view import View
from peeklock.limits.broker import MAX_RULE_DEPTH, MAX_TEXT
from peeklock.store.base import StoredMessage

NAMES: Final = {
    "JMSMessageID": "JMSMessageID",
    "JMSCorrelationID": "JMSCorrelationID",
    "JMSType": "Label",
    "JMSPriority": "JMSPriority",
    "JMSTimestamp": "JMSTimestamp",
    "JMSDeliveryMode": "JMSDeliveryMode",
    "JMSDestination": "To",
    "JMSReplyTo": "ReplyTo",
    "JMSExpiration": "JMSExpiration",
    "JMSXGroupID": "SessionId",
    "JMSXGroupSeq": "JMSXGroupSeq",
    "JMSXDeliveryCount": "JMSXDeliveryCount",
    "JMSXUserID": "JMSXUserID",
    # Names for fields of the AMQP sections, which only Qpid's clients use.
    "amqp.message_id": "MessageId",
    "amqp.correlation_id": "CorrelationId",
    "amqp.subject": "Label",
    "amqp.to": "To",
    "amqp.reply_to": "ReplyTo",
    "amqp.content_type": "ContentType",
    "amqp.group_id": "SessionId",
    "amqp.group_sequence": "JMSXGroupSeq",
    "amqp.reply_to_group_id": "ReplyToSessionId",
    "amqp.user_id": "JMSXUserID",
    "amqp.creation_time": "JMSTimestamp",
    "amqp.absolute_expiry_time": "JMSExpiration",
    "amqp.priority": "JMSPriority",
    "amqp.delivery_count": "DeliveryCount",
}
"""The system properties for names in selectors. Names are case-sensitive, as in JMS."""


class Selector:
    """A compiled selector. The constructor raises SqlError if the text is not a selector."""

    __slots__ = ("_passes", "cost", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._passes = compile_selector(text)
        self.cost = 1 + len(text) // 64
        """The cost of evaluating a small message. It is 1 for a short selector."""

    def work(self, message: StoredMessage) -> int:
        """Return the cost of evaluating a message. A large message costs more, because its values may be long."""
        return self.cost * (1 + len(message.payload) // 1024)

    def matches(self, message: StoredMessage) -> bool:
        """Return whether the message matches. It does not if the result is unknown or the evaluation fails."""
        expires_at = message.expires_at
        view = View(
            message.payload,
            message.annex,
            ttl_ms=None if expires_at is None else expires_at - message.enqueued_at,
            enqueued_at=message.enqueued_at,
            sequence_number=message.sequence_number,
            delivery_count=message.delivery_count,
        )
        try:
            return self._passes(view)
        except Exception as failure:
            sentence_of(failure)  # logs a fault of the broker
            return False


def compile_selector(text: str) -> Filter:
    """Compile a selector. Raise SqlError, with the position of the error, if it is invalid."""
    return compile_filter(rule_of(text))


@lru_cache(maxsize=1024)
def rule_of(text: str) -> str:
    """Translate a selector to the text of a SQL filter. Raise SqlError if the selector is invalid."""
    rule = _Translation(text).condition
    if len(rule) > MAX_TEXT:
        problem = f"The selector has {len(rule)} characters as a rule, more than the {MAX_TEXT} allowed"
        raise SqlError(text, 0, problem)
    compile_filter(rule)
    return rule


class _Translation:
    """The translation of one selector to the language of rules."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        root = parse(text, "selector").children[0]
        self.condition = self._of(root)

    def _of(self, part: Tree[Token] | Token) -> str:
        if isinstance(part, Token):
            return str(part)
        if self._depth >= 4 * MAX_RULE_DEPTH:  # one level of a valid expression is up to three levels of the tree
            raise SqlError(self._text, _place(part), f"The selector is nested more than {MAX_RULE_DEPTH} levels deep")
        self._depth += 1
        made = self._made(part)
        self._depth -= 1
        if len(made) > 4 * MAX_TEXT:  # BETWEEN repeats its first operand, and can be nested
            raise SqlError(self._text, _place(part), "The selector is too long")
        return made

    def _made(self, tree: Tree[Token]) -> str:
        children = tree.children
        match tree.data:
            case "constant":
                return self._constant(_token(tree))
            case "property":
                return self._property(_token(tree))
            case "disjunction":
                return " OR ".join(map(self._of, children))
            case "conjunction":
                return " AND ".join(map(self._of, children))
            case "nested":
                return f"({self._of(children[1])})"
            case "list":
                return f"({', '.join(map(self._of, children))})"
            case "signed":
                return "".join(map(self._of, children))
            case "between" | "not_between":
                value, least, most = map(self._of, [each for each in children if isinstance(each, Tree)])
                negation = "NOT " if tree.data == "not_between" else ""
                return f"{negation}({value} >= {least} AND {value} <= {most})"
            case "like" | "not_like" if children[-1] is not None:
                *others, escape = map(self._of, children)
                return f"{' '.join(others)} ESCAPE {escape}"
            case _:
                return " ".join(map(self._of, [each for each in children if each is not None]))

    def _constant(self, token: Token) -> str:
        match token.type:
            case "INTEGER":
                digits = token.rstrip("lL")
                is_octal = len(digits) > 1 and digits[0] == "0" and not set(digits) & set("89")
                return self._integer(token, int(digits, 8 if is_octal else 10))
            case "HEXADECIMAL":
                return self._integer(token, int(token.rstrip("lL"), 16))
            case "DECIMAL":
                number = token.rstrip("fFdD")
                return number if set(number) & set(".eE") else f"{number}.0"
            case _:
                return str(token)

    def _integer(self, token: Token, number: int) -> str:
        if number > -MIN_INTEGER:  # -MIN_INTEGER is allowed, because a sign may be before it
            problem = f"The number is outside the range of 64-bit integers, which ends at {MAX_INTEGER}"
            raise SqlError(self._text, token.start_pos or 0, problem)
        return str(number)

    def _property(self, token: Token) -> str:
        name = str(token)
        if token.type == "QUOTED":
            name = token[1:-1].replace('""', '"')
        if not name:
            raise SqlError(self._text, token.start_pos or 0, "The name is empty")
        known = NAMES.get(name)
        if known is None and name.startswith("amqp."):
            names = ", ".join(each for each in NAMES if each.startswith("amqp."))
            raise SqlError(self._text, token.start_pos or 0, f"There is no {shown(name)}; there are {names}")
        return f"[{name.replace(']', ']]')}]" if known is None else f"sys.{known}"


def _token(tree: Tree[Token]) -> Token:
    token = tree.children[0]
    assert isinstance(token, Token)
    return token


def _place(part: Tree[Token]) -> int:
    return int(getattr(part.meta, "start_pos", 0) or 0)
