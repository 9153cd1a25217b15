"""Access control: shared access keys, the tokens signed with them, and the grants of a connection.

A grant has a path, the rights at that path, and the time when it expires. It covers everything below its path: an
entity's sub-queues and `$management`, a topic's subscriptions. The texts of errors say "claim" for it,
as the service's do.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Protocol
from urllib.parse import unquote, unquote_plus

from peeklock.broker.errors import InvalidToken, QuotaExceeded, Unauthorized, WrongKey
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.names import fold, without_origin
from peeklock.limits.broker import MAX_AUDIENCE_LENGTH, MAX_TOKEN_LENGTH, MAX_TOKENS

SAS_PREFIX: Final = "SharedAccessSignature "
MAX_NAMED: Final = 10
"""The most key names in one log line."""
_JWT = re.compile(r"^[\w-]+\.[\w-]+\.[\w-]*$")


def spelt_path(uri: str) -> str:
    """Return a resource's path as the client spelt it, without scheme, host and query. For log lines and errors."""
    path = without_origin(uri.split("?", 1)[0])
    return unquote(path).strip("/")


def resource_path(uri: str) -> str:
    """Return a resource's path for comparisons: as `spelt_path`, folded."""
    return fold(spelt_path(uri))


def ancestors(path: str) -> Iterator[str]:
    """Return the path itself and everything above it, up to the namespace (the empty path)."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""


def _is_same(known: str, shown: str) -> bool:
    return hmac.compare_digest(known.encode(), shown.encode())


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights at a path and below it. `expires_at` is in Unix milliseconds; None: the grant never expires.

    `owner` is the path of the entity whose own rule gives the rights; it is empty for a rule of the namespace. A rule
    of an entity gives no right to another entity, even if its name starts with the same segments.
    """

    path: str
    owner: str
    rights: frozenset[Right]
    expires_at: int | None
    rule: str = field(default="", compare=False)
    """The rule that gives the rights: the path of its entity, and its name. Limits per rule are counted by this."""
    key: str = field(default="", repr=False, compare=False)
    """The rule's key that the client presented, or that signed the token."""

    @property
    def key_name(self) -> str:
        """The name of the rule. For log lines."""
        return self.rule.rpartition("/")[2]

    def allows(self, right: Right, entity: str | None) -> bool:
        """Return whether the grant gives the right at a queue or topic whose path it covers; None: at the namespace."""
        return right in self.rights and (not self.owner or (entity is not None and self.owner == fold(entity)))


class KeysWatcher(Protocol):
    """A connection, whose grants depend on authorization rules."""

    def on_rules_changed(self, path: str) -> None:
        """The rules of the entity at a folded path have changed. The empty path is that of the namespace.

        A deleted entity has no rules.
        """
        ...


def key_name_of(token: str) -> str:
    """Return the name of the key that a token claims to be signed with. It is not verified."""
    fields = dict(pair.partition("=")[::2] for pair in token[:MAX_TOKEN_LENGTH].split(" ", 1)[-1].split("&"))
    return unquote_plus(fields.get("skn", ""))


class Keys:
    """The authorization rules of a namespace and its entities, by path."""

    def __init__(self) -> None:
        self._rules: dict[str, tuple[AuthorizationRule, ...]] = {}
        self.watchers: set[KeysWatcher] = set()

    def set(self, path: str, rules: tuple[AuthorizationRule, ...]) -> None:
        """Set the rules of an entity, or of the namespace (the empty path)."""
        path = fold(path)
        if rules == self._rules.get(path, ()):
            return
        if rules:
            self._rules[path] = rules
        else:
            self._rules.pop(path, None)
        for watcher in list(self.watchers):
            watcher.on_rules_changed(path)

    def current(self, grant: Grant) -> Grant | None:
        """Return the grant with the rights that its rule gives now; None if the rule or its key no longer exists."""
        for rule in self._rules.get(grant.owner, ()):
            if f"{grant.owner}/{rule.name}" == grant.rule and any(_is_same(key, grant.key) for key in rule.keys):
                return grant if rule.rights == grant.rights else replace(grant, rights=rule.rights)
        return None

    def verify(self, token: str, audience: str, now: int, grace_ms: int = 0) -> Grant:
        """Verify a token that a client sent for `audience`, and return its grant.

        Raise InvalidToken if the token gives no right. `grace_ms`: how long a token is accepted after it has expired.
        """
        if len(token) > MAX_TOKEN_LENGTH:
            raise InvalidToken(f"The token has {len(token)} characters; at most {MAX_TOKEN_LENGTH} are allowed.")
        if len(audience) > MAX_AUDIENCE_LENGTH:
            raise InvalidToken(
                f"The resource that the token is for has a name of {len(audience)} characters; "
                f"at most {MAX_AUDIENCE_LENGTH} are allowed."
            )
        if not token.startswith(SAS_PREFIX):
            if _JWT.match(token):
                raise InvalidToken("Tokens of an identity provider are not accepted here: use a shared access key.")
            raise InvalidToken("The token is not a shared access signature.")
        fields = dict(pair.partition("=")[::2] for pair in token[len(SAS_PREFIX) :].strip().split("&"))
        missing = [name for name in ("sr", "sig", "se", "skn") if not fields.get(name)]
        if missing:
            raise InvalidToken(f"The token has no '{missing[0]}'.")
        if not re.fullmatch(r"[0-9]{1,15}", fields["se"]):
            raise InvalidToken("The token's expiry ('se') is not a number of seconds.")
        scope = resource_path(unquote_plus(fields["sr"]))
        path = resource_path(audience)
        if scope not in ancestors(path):
            raise InvalidToken("The token was made for another resource than the one it was sent for.")
        expires_at = int(fields["se"]) * 1000
        if expires_at + grace_ms <= now:
            # The expiry is not later than now, so it is within the range of a datetime.
            expired = datetime.fromtimestamp(expires_at / 1000, UTC).isoformat().replace("+00:00", "Z")
            raise InvalidToken(f"The token has expired: it was valid until {expired}.")
        owner, rule, key = self._signed_by(fields, path)
        return Grant(path, owner, rule.rights, expires_at, f"{owner}/{rule.name}", key)

    def grants_for(self, name: str, key: str) -> list[Grant]:
        """Return the grants of a client that presents a rule's name and its key (SASL PLAIN)."""
        return [
            Grant(path, path, rule.rights, None, f"{path}/{rule.name}", key)
            for path, rules in self._rules.items()
            for rule in rules
            if rule.name == name and any(_is_same(known, key) for known in rule.keys)
        ]

    def _signed_by(self, fields: dict[str, str], path: str) -> tuple[str, AuthorizationRule, str]:
        """Return the rule and the key that signed the token: the entity's own rules first, then the namespace's."""
        signed = f"{fields['sr']}\n{fields['se']}".encode()  # as transmitted, still percent-encoded
        signature = unquote(fields["sig"]).encode()
        name = unquote_plus(fields["skn"])
        for place in ancestors(path):
            for rule in self._rules.get(place, ()):
                if rule.name != name:
                    continue
                for key in rule.keys:
                    digest = hmac.digest(key.encode(), signed, hashlib.sha256)
                    if hmac.compare_digest(base64.b64encode(digest), signature):
                        return place, rule, key
        raise WrongKey("The token's signature does not match any key of that name.")


class Grants:
    """The grants of one connection, valid until it closes."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def __bool__(self) -> bool:
        return bool(self._grants)

    @property
    def key_names(self) -> str:
        """The names of the first keys that the connection presented. For log lines."""
        return ", ".join(sorted({grant.key_name for grant in islice(self._grants.values(), MAX_NAMED)}))

    @property
    def soonest_expiry(self) -> int | None:
        return min((grant.expires_at for grant in self._grants.values() if grant.expires_at is not None), default=None)

    def add(self, grant: Grant) -> None:
        """Add a grant. It replaces an older one for the same path."""
        if grant.path not in self._grants and len(self._grants) >= MAX_TOKENS:
            raise QuotaExceeded(f"The connection has sent {MAX_TOKENS} tokens; no more are allowed.")
        self._grants[grant.path] = grant

    @property
    def has_lasting(self) -> bool:
        """Whether a grant never expires. Such a grant comes from a key that the client presented at login."""
        return any(grant.expires_at is None for grant in self._grants.values())

    def revise(self, path: str, current: Callable[[Grant], Grant | None]) -> list[str]:
        """Update the grants of the rules at a path. Return the names of the rules that now give fewer rights."""
        reduced: list[str] = []
        for place, grant in list(self._grants.items()):
            if grant.owner != path:
                continue
            revised = current(grant)
            if revised is None:
                del self._grants[place]
            else:
                self._grants[place] = revised
            if revised is None or not revised.rights >= grant.rights:
                reduced.append(grant.key_name)
        return reduced

    def forget(self, by: int) -> None:
        """Remove the grants that expire at or before the time `by`."""
        for grant in list(self._grants.values()):
            if grant.expires_at is not None and grant.expires_at <= by:
                del self._grants[grant.path]

    def has(self, right: Right, now: int) -> bool:
        """Return whether a grant gives the right to any entity."""
        return any(
            right in grant.rights and (grant.expires_at is None or grant.expires_at > now)
            for grant in self._grants.values()
        )

    def check(self, path: str, entity: str, right: Right, now: int) -> Grant:
        """Return the grant that gives `right` at `path`, which belongs to the queue or topic `entity`.

        Raise Unauthorized if there is none.
        """
        expired = False
        entity = fold(entity)
        for place in ancestors(fold(path)):
            grant = self._grants.get(place)
            if grant is None or grant.owner not in ("", entity):
                continue
            if grant.expires_at is not None and grant.expires_at <= now:
                expired = True
            elif right in grant.rights:
                return grant
        reason = "the token has expired" if expired else f"'{right}' claim is required"
        raise Unauthorized(f"Unauthorized access to '{path}': {reason}.")
