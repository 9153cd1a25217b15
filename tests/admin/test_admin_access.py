"""Who may administer what."""

from __future__ import annotations

import pytest

from admin.atom import AtomClient, queue, rule, subscription, topic
from peeklock.client import ClientError, connect
from peeklock.entities.authorization import ALL_RIGHTS, AuthorizationRule, Right, default_authorization_rule
from peeklock.entities.definitions import QueueDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.server.http import HTTP_GRACE_MS
from serving import StartBroker


def keyed(name: str, *rights: Right) -> tuple[AuthorizationRule, ...]:
    return (AuthorizationRule(name=name, primary_key=f"key-of-{name}", rights=frozenset(rights or ALL_RIGHTS)),)


@pytest.fixture
def port(start_broker: StartBroker) -> int:
    namespace = NamespaceDefinition(
        queues=(
            QueueDefinition(name="a", authorization_rules=keyed("mine")),
            QueueDefinition(name="a/b"),
            QueueDefinition(name="c", authorization_rules=keyed("sender", Right.SEND)),
        ),
        topics=(TopicDefinition(name="news", authorization_rules=keyed("editor")),),
        authorization_rules=(default_authorization_rule(), *keyed("reader", Right.LISTEN, Right.SEND)),
    )
    return start_broker(data=None, namespace=namespace).broker.port


def test_without_a_token_no_information_is_returned(port: int) -> None:
    for path in ("/a", "/none", "/$Resources/queues", "/$namespaceinfo", "/"):
        answer = AtomClient(port).get(path, Authorization="")
        assert answer.status == 401
        assert "has no token" in answer.detail


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("Bearer eyJ.eyJ.sig", "use a shared access key"),
        ("bearer x", "use a shared access key"),
        ("Basic dXNlcjpwYXNz", "not a shared access signature"),
        ("SharedAccessSignature sr=x&sig=y", "has no 'se'"),
        ("SharedAccessSignature sr=\xe9&sig=y&se=1&skn=z", "characters outside ASCII"),
        ("SharedAccessSignature " + "x" * 7000, "has no"),
    ],
)
def test_an_invalid_token_is_refused_with_the_reason(port: int, token: str, said: str) -> None:
    answer = AtomClient(port).get("/a", Authorization=token)
    assert answer.status == 401
    assert said in answer.detail


def test_a_forged_or_expired_token_is_refused(port: int) -> None:
    assert "signature does not match" in AtomClient(port, key="wrong").get("/a").detail
    atom = AtomClient(port)
    assert "has expired: it was valid until 2" in atom.get("/a", Authorization=atom.token(expires_in=-600)).detail


def test_a_token_is_accepted_for_some_minutes_after_it_has_expired(start_broker: StartBroker) -> None:
    """The Python SDK renews its token a minute after the end."""
    broker = start_broker(data=None)
    atom = AtomClient(broker.broker.port)
    token = atom.token(expires_in=10)
    broker.advance(10 + HTTP_GRACE_MS / 1000 - 5)
    assert atom.get("/queue", Authorization=token).status == 200
    broker.advance(10)
    answer = atom.get("/queue", Authorization=token)
    assert (answer.status, "The token has expired: it was valid until " in answer.detail) == (401, True)


def test_a_connection_over_amqp_does_not_accept_expired_tokens(start_broker: StartBroker) -> None:
    broker = start_broker(data=None)
    broker.advance(3600 + 1)
    with (
        pytest.raises(ClientError, match="The token has expired: it was valid until"),
        connect(broker.connection_string) as connection,
    ):
        connection.sender("queue")


def test_a_token_covers_its_entity_and_sub_entities(port: int) -> None:
    atom = AtomClient(port)
    assert atom.get("/a/b", Authorization=atom.token("A/b?api-version=2021-05")).status == 200
    assert atom.get("/a%2Fb", Authorization=atom.token("a%2Fb")).status == 200
    assert atom.get("/a/b", Authorization=atom.token("c")).status == 401
    assert atom.put("/news/subscriptions/s", subscription(), Authorization=atom.token("news")).status == 201


def test_administration_requires_manage(port: int) -> None:
    answer = AtomClient(port, "reader", "key-of-reader").get("/a")
    assert answer.status == 401
    assert "'Manage' claim is required" in answer.detail
    assert AtomClient(port, "sender", "key-of-sender").delete("/c").status == 401


def test_a_rule_of_an_entity_administers_that_entity_only(port: int) -> None:
    mine = AtomClient(port, "mine", "key-of-mine")
    assert mine.get("/a").status == 200
    assert mine.put("/A", queue("<UserMetadata>m</UserMetadata>"), If_Match="*").status == 200
    for path in ("/a/b", "/c", "/new", "/$Resources/queues", "/$namespaceinfo"):
        assert mine.get(path).status == 401
    assert mine.put("/a/new", queue()).status == 401
    assert mine.delete("/a/b").status == 401
    assert mine.delete("/a").status == 200


def test_a_rule_of_a_topic_administers_its_subscriptions_and_their_rules(port: int) -> None:
    editor = AtomClient(port, "editor", "key-of-editor")
    assert editor.put("/news/subscriptions/s", subscription()).status == 201
    assert editor.put("/news/subscriptions/s/rules/r", rule()).status == 201
    assert editor.get("/news/subscriptions").titles == ["s"]
    assert editor.put("/news", topic(), If_Match="*").status == 200
    assert editor.get("/a").status == 401


def test_a_key_of_one_entity_forwards_only_to_entities_it_may_send_to(port: int) -> None:
    mine, root = AtomClient(port, "mine", "key-of-mine"), AtomClient(port)
    to_c = queue("<ForwardTo>c</ForwardTo>")
    assert mine.put("/a", to_c, If_Match="*").status == 401
    supplementary = AtomClient(port, "sender", "key-of-sender").token("c")
    for wrong in (mine.token(), AtomClient(port, "sender", "guessed").token("c")):
        assert mine.put("/a", to_c, If_Match="*", ServiceBusSupplementaryAuthorization=wrong).status == 401
    assert mine.put("/a", to_c, If_Match="*", ServiceBusSupplementaryAuthorization=supplementary).status == 200
    assert mine.put("/a", to_c, If_Match="*").status == 200  # as it was
    dead_letters = queue("<ForwardDeadLetteredMessagesTo>c</ForwardDeadLetteredMessagesTo>")
    assert mine.put("/a", dead_letters, If_Match="*", ServiceBusSupplementaryAuthorization=supplementary).status == 401
    shown = {"ServiceBusDlqSupplementaryAuthorization": supplementary}
    assert mine.put("/a", dead_letters, If_Match="*", **shown).status == 200
    assert root.put("/a/b", queue("<ForwardTo>c</ForwardTo>"), If_Match="*").status == 200


def test_a_key_works_as_soon_as_it_is_there_and_no_longer(port: int) -> None:
    root, late = AtomClient(port), AtomClient(port, "late", "key-of-late")
    assert late.get("/c").status == 401
    rules = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Manage</AccessRights></Rights>"
        "<KeyName>late</KeyName><PrimaryKey>key-of-late</PrimaryKey></AuthorizationRule></AuthorizationRules>"
    )
    assert root.put("/c", queue(rules), If_Match="*").status == 200
    assert late.get("/c").status == 200
    assert root.put("/c", queue("<AuthorizationRules/>"), If_Match="*").status == 200
    assert late.get("/c").status == 401
