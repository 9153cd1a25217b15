"""The part of Azure's resource management that the tests use, implemented with the broker's administration.

A namespace cannot be created: the broker is the only one. Its authorization rules are in the broker's configuration,
one for each set of rights (`suites.broker`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

import isodate
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient
from suite_credentials import SharedKey

_QUEUE_SETTINGS = (
    "requires_duplicate_detection",
    "dead_lettering_on_message_expiration",
    "requires_session",
    "enable_partitioning",
)


class Named:
    """A created resource, as tests see it."""

    def __init__(self, name: str, id: str | None = None) -> None:
        self.name = name
        self.id = id or name


class _Done:
    """A completed operation."""

    def __init__(self, made: Named) -> None:
        self._made = made

    def result(self) -> Named:
        return self._made


class _Keys:
    def __init__(self, name: str, key: str, entity: str = "") -> None:
        self.key_name = name
        self.primary_key = key
        self.primary_connection_string = (
            f"Endpoint=sb://{_namespace()}/;SharedAccessKeyName={name};SharedAccessKey={key}"
            + (f";EntityPath={entity}" if entity else "")
        )


def _namespace() -> str:
    return os.environ["SERVICEBUS_FULLY_QUALIFIED_NAMESPACE"]


def _duration(text: str | timedelta | None) -> timedelta | None:
    return isodate.parse_duration(text) if isinstance(text, str) else text


class _Resources:
    def __init__(self, client: ServiceBusAdministrationClient) -> None:
        self._client = client


class _Namespaces(_Resources):
    def begin_create_or_update(self, group: str, name: str, _settings: Any) -> _Done:
        return _Done(Named(_namespace()))

    def delete(self, group: str, name: str) -> None:
        pass

    def create_or_update_authorization_rule(self, group: str, namespace: str, name: str, rule: Any) -> Named:
        self._rights = rule.rights
        return Named(name)

    def delete_authorization_rule(self, group: str, namespace: str, name: str) -> None:
        pass

    def list_keys(self, group: str, namespace: str, name: str) -> _Keys:
        if name == os.environ["SERVICEBUS_SAS_POLICY"]:
            return _Keys(name, os.environ["SERVICEBUS_SAS_KEY"])
        # The configuration has such a rule; its key is its name.
        rule = "-".join(sorted(str(getattr(each, "value", each)).lower() for each in self._rights))
        return _Keys(rule, rule)


class _Queues(_Resources):
    def create_or_update(self, group: str, namespace: str, name: str, queue: Any) -> Named:
        settings = {each: getattr(queue, each) for each in _QUEUE_SETTINGS}
        self._client.create_queue(name, lock_duration=_duration(queue.lock_duration), **settings)
        return Named(name)

    def delete(self, group: str, namespace: str, name: str) -> None:
        with suppress(ResourceNotFoundError):
            self._client.delete_queue(name)

    def create_or_update_authorization_rule(
        self, group: str, namespace: str, queue: str, name: str, rule: Any
    ) -> Named:
        properties = self._client.get_queue(queue)
        properties.authorization_rules = [
            AuthorizationRule(
                type="SharedAccessAuthorizationRule",
                claim_type="SharedAccessKey",
                claim_value="None",
                key_name=name,
                primary_key=name,
                secondary_key=f"{name}-2",
                rights=[AccessRights(str(getattr(each, "value", each))) for each in rule.rights],
            )
        ]
        self._client.update_queue(properties)
        return Named(name)

    def delete_authorization_rule(self, group: str, namespace: str, queue: str, name: str) -> None:
        with suppress(ResourceNotFoundError):
            properties = self._client.get_queue(queue)
            properties.authorization_rules = []
            self._client.update_queue(properties)

    def list_keys(self, group: str, namespace: str, queue: str, name: str) -> _Keys:
        return _Keys(name, name, queue)


class _Topics(_Resources):
    def create_or_update(self, group: str, namespace: str, name: str, _topic: Any) -> Named:
        self._client.create_topic(name)
        return Named(name)

    def delete(self, group: str, namespace: str, name: str) -> None:
        with suppress(ResourceNotFoundError):
            self._client.delete_topic(name)


class _Subscriptions(_Resources):
    def create_or_update(self, group: str, namespace: str, topic: str, name: str, subscription: Any) -> Named:
        self._client.create_subscription(
            topic,
            name,
            requires_session=subscription.requires_session,
            lock_duration=_duration(subscription.lock_duration),
        )
        return Named(name)

    def delete(self, group: str, namespace: str, topic: str, name: str) -> None:
        with suppress(ResourceNotFoundError):
            self._client.delete_subscription(topic, name)


class _Groups:
    def create_or_update(self, name: str, _parameters: Any) -> Named:
        return Named(name)

    def begin_delete(self, name: str, **_: Any) -> _Done:
        return _Done(Named(name))


class Management:
    """Both clients of resource management in one."""

    def __init__(self) -> None:
        client = ServiceBusAdministrationClient(_namespace(), SharedKey())
        self.resource_groups = _Groups()
        self.namespaces = _Namespaces(client)
        self.queues = _Queues(client)
        self.topics = _Topics(client)
        self.subscriptions = _Subscriptions(client)
