"""The client against Peeklock itself, and the example of its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peeklock.amqp.errors import Condition
from peeklock.client import AuthenticationFailed, LinkClosed, Message, SettlementFailed, connect
from serving import BrokerThread

ROOT = Path(__file__).parents[2]
StartBroker = Callable[..., BrokerThread]


def test_messages_are_sent_received_and_settled_with_the_connection_strings_key(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.connection_string) as connection:
        sender = connection.sender("queue")
        assert sender.send_all(Message(data=[b"%d" % number]) for number in range(300)) == 300
        receiver = connection.receiver("queue", credit=50)
        bodies: list[int] = []
        while len(bodies) < 300:
            messages = receiver.receive(40)
            bodies += [int(message.body) for message in messages]
            receiver.accept(messages)
        receiver.confirm()
    assert bodies == list(range(300))
    assert broker.counters().active == 0


def test_a_rejected_message_is_found_in_the_dead_letter_queue(start_broker: StartBroker) -> None:
    with connect(start_broker().connection_string) as connection:
        connection.sender("queue").send(Message(data=[b"bad"]))
        receiver = connection.receiver("queue")
        info = {"DeadLetterReason": "why"}
        receiver.reject(receiver.receive(), Condition.DEAD_LETTER, info=info, wait=True)
        (dead,) = connection.receiver("queue/$deadletterqueue").receive()
        assert dead.body == b"bad"
        assert dead.message.application_properties is not None
        assert dead.message.application_properties["DeadLetterReason"] == "why"


def test_a_drain_is_answered_after_messages_being_deleted_are_delivered(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(data=tmp_path)
    with connect(broker.connection_string) as connection:
        connection.sender("queue").send_all(Message(data=[b"x"]) for _ in range(200))
        receiver = connection.receiver("queue", credit=500, mode="receive-and-delete")
        receiver.drain(timeout=20)
        assert len(receiver.receive(500, timeout=0)) == 200


def test_a_lost_lock_fails_the_settlement(start_broker: StartBroker) -> None:
    broker = start_broker()
    with connect(broker.connection_string) as connection:
        connection.sender("queue").send(Message(data=[b"slow"]))
        receiver = connection.receiver("queue", credit=1)
        messages = receiver.receive()
        broker.advance(3600)
        with pytest.raises(SettlementFailed) as failed:
            receiver.accept(messages, wait=True)
        assert failed.value.condition == Condition.MESSAGE_LOCK_LOST


def test_a_wrong_key_is_refused(start_broker: StartBroker) -> None:
    address = start_broker().connection_string.replace("SAS_KEY_VALUE", "another")
    with connect(address) as connection, pytest.raises(AuthenticationFailed):
        connection.sender("queue")


def test_key_name_and_key_are_good_for_sasl_plain(start_broker: StartBroker) -> None:
    address = start_broker().connection_string
    port = address.split(";")[0].rpartition(":")[2].rstrip("/")
    url = f"amqp://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{port}"
    with connect(url) as connection:
        connection.sender("queue").send(Message(data=[b"x"]))
        with pytest.raises(LinkClosed) as refused:
            connection.sender("nowhere")
        assert refused.value.condition == Condition.NOT_FOUND


def test_the_example_of_the_page_runs(start_broker: StartBroker) -> None:
    broker = start_broker()
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL)[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CONNECTION_STRING": broker.connection_string}
    ran = subprocess.run(
        [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout, ran.stderr) == ("1001 messages were received and are gone\n", "")
