"""The program of `test_uamqp`: azure-servicebus 7.8 over WebSocket, the only transport whose port can be set."""

from __future__ import annotations

import json
import sys
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, TransportType

SIZES = (5, 70_000, 200_000)


def main() -> None:
    port, authority = sys.argv[1:]
    client = ServiceBusClient.from_connection_string(
        "Endpoint=sb://localhost/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE",
        custom_endpoint_address=f"sb://localhost:{port}",
        transport_type=TransportType.AmqpOverWebsocket,
        connection_verify=authority,
        retry_total=0,
    )
    found: dict[str, Any] = {}
    with client:
        with client.get_queue_sender("queue") as sender:
            for size in SIZES:
                sender.send_messages(ServiceBusMessage("x" * size))
        with client.get_queue_receiver("queue") as receiver:
            found["peeked"] = len(receiver.peek_messages(10))
            messages = received(receiver, len(SIZES))
            found["sizes"] = [len(str(message)) for message in messages]
            found["numbers"] = [message.enqueued_sequence_number for message in messages]
            completed, deferred, letter = messages
            receiver.renew_message_lock(completed)
            receiver.complete_message(completed)
            receiver.defer_message(deferred)
            receiver.dead_letter_message(letter, reason="because")
            (again,) = receiver.receive_deferred_messages(deferred.sequence_number)
            receiver.abandon_message(again)
        delete = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client.get_queue_receiver("queue", sub_queue="deadletter", receive_mode=delete) as receiver:
            (message,) = received(receiver, 1)
            found["deleted"] = [len(str(message)), message.dead_letter_reason]
        with client.get_queue_sender("session-queue") as sender:
            sender.send_messages([ServiceBusMessage(text, session_id="s") for text in "ab"])
        with client.get_queue_receiver("session-queue", session_id="s") as receiver:
            receiver.session.set_state("state")
            found["state"] = receiver.session.get_state().decode()
            found["session"] = [str(message) for message in received(receiver, 2)]
    print(json.dumps(found))


def received(receiver: Any, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        more = receiver.receive_messages(count - len(messages), max_wait_time=20)
        if not more:
            raise SystemExit(f"{len(messages)} of {count} messages came")
        messages += more
    return messages


if __name__ == "__main__":
    main()
