"""Execute the commands of `conformance/program.py` with the blocking client of azure-servicebus."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import words
from azure.servicebus import AutoLockRenewer, ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient
from words import Json


class Calls:
    """A method for each word. What was opened or received is kept under a handle."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._numbers = itertools.count(1)

    def keep(self, thing: Any) -> str:
        handle = f"h{next(self._numbers)}"
        self._kept[handle] = thing
        return handle

    def _of(self, asked: Json, word: str) -> Any:
        return self._kept[asked[word]]

    def reset(self, asked: Json) -> None:
        kept, self._kept = self._kept, {}
        # The SDK takes a second for each, in which one of its threads sleeps.
        for thing in kept.values():
            if hasattr(thing, "close"):
                threading.Thread(target=_close, args=(thing,), daemon=True).start()

    def close(self, asked: Json) -> None:
        self._kept.pop(asked["handle"]).close()

    def open(self, asked: Json) -> str:
        return self.keep(ServiceBusClient.from_connection_string(asked["connection"], **words.client_options(asked)))

    # --- sending ---

    def sender(self, asked: Json) -> str:
        client = self._of(asked, "client")
        return self.keep(
            client.get_topic_sender(asked["topic"]) if asked.get("topic") else client.get_queue_sender(asked["queue"])
        )

    def send(self, asked: Json) -> None:
        sender = self._of(asked, "sender")
        if not asked.get("batch"):
            for message in asked["messages"]:
                sender.send_messages(words.message_from(message))
            return
        batch = sender.create_message_batch()
        for message in asked["messages"]:
            batch.add_message(words.message_from(message))
        sender.send_messages(batch)

    def fill(self, asked: Json) -> int:
        sender = self._of(asked, "sender")
        batch = sender.create_message_batch()
        with suppress(ValueError):
            while True:
                batch.add_message(words.message_from({"size": asked["size"]}))
        sender.send_messages(batch)
        return len(batch)

    def schedule(self, asked: Json) -> list[int]:
        messages = [words.message_from(message) for message in asked["messages"]]
        numbers: list[int] = self._of(asked, "sender").schedule_messages(messages, words.moment(asked["at"]))
        return numbers

    def cancel(self, asked: Json) -> None:
        self._of(asked, "sender").cancel_scheduled_messages(asked["numbers"])

    # --- receiving ---

    def receiver(self, asked: Json) -> str:
        return self.keep(self._receiver(asked, words.receiver_options(asked)))

    def accept(self, asked: Json) -> Json:
        receiver = self._receiver(asked, words.receiver_options(asked) | words.session_options(asked))
        receiver.__enter__()
        session = receiver.session
        until = words.milliseconds(session.locked_until_utc)
        return {"handle": self.keep(receiver), "session": session.session_id, "until": until}

    def _receiver(self, asked: Json, options: Json) -> Any:
        client = self._of(asked, "client")
        if asked.get("topic"):
            return client.get_subscription_receiver(asked["topic"], asked["subscription"], **options)
        return client.get_queue_receiver(asked["queue"], **options)

    def receive(self, asked: Json) -> list[Json]:
        receiver = self._of(asked, "receiver")
        return self._told(receiver.receive_messages(max_message_count=asked["count"], max_wait_time=asked["wait"]))

    def deferred(self, asked: Json) -> list[Json]:
        return self._told(self._of(asked, "receiver").receive_deferred_messages(asked["numbers"]))

    def peek(self, asked: Json) -> list[Json]:
        start = {} if asked.get("start") is None else {"sequence_number": asked["start"]}
        return self._told(self._of(asked, "receiver").peek_messages(asked["count"], **start))

    def _told(self, messages: list[Any]) -> list[Json]:
        return [words.message_to(message, self.keep(message)) for message in messages]

    def settle(self, asked: Json) -> None:
        receiver, message = self._of(asked, "receiver"), self._of(asked, "message")
        how = asked["how"]
        if how == "dead_letter":
            why = {"reason": asked.get("reason"), "error_description": asked.get("description")}
            receiver.dead_letter_message(message, **why)
        else:
            getattr(receiver, f"{how}_message")(message)

    def renew(self, asked: Json) -> int | None:
        message = self._of(asked, "message")
        return words.milliseconds(self._of(asked, "receiver").renew_message_lock(message))

    # --- sessions ---

    def state(self, asked: Json) -> str | None:
        state = self._of(asked, "receiver").session.get_state()
        return None if state is None else state.decode()

    def set_state(self, asked: Json) -> None:
        self._of(asked, "receiver").session.set_state(asked["state"])

    def renew_session(self, asked: Json) -> int | None:
        return words.milliseconds(self._of(asked, "receiver").session.renew_lock())

    def sessions(self, asked: Json) -> list[str]:
        return list(self._of(asked, "client").list_queue_sessions(asked["queue"]))

    # --- receiving as it comes ---

    def process(self, asked: Json) -> list[Json]:
        options = {"session_id": asked["session"]} if asked.get("session") else {}
        handled: list[Json] = []
        with self._receiver(asked, {"max_wait_time": 30, **options}) as receiver, AutoLockRenewer() as renewer:
            for message in receiver:
                if asked.get("renew"):
                    renewer.register(receiver, message, max_lock_renewal_duration=60)
                time.sleep(asked.get("work", 0))
                receiver.complete_message(message)
                handled.append(words.message_to(message, ""))
                if len(handled) == asked["count"]:
                    break
        return handled

    # --- administration ---

    def administer(self, asked: Json) -> str:
        return self.keep(
            ServiceBusAdministrationClient.from_connection_string(
                asked["connection"], connection_verify=asked["trust"], retry_total=0
            )
        )

    def create(self, asked: Json) -> Json:
        administrator = self._of(asked, "administrator")
        made = getattr(administrator, f"create_{asked['kind']}")
        if asked["kind"] == "rule":
            return words.rule_to(made(*asked["path"], **words.rule_from(asked["settings"])))
        return words.settings_to(made(*asked["path"], **words.settings_from(asked["settings"])))

    def get(self, asked: Json) -> Json:
        found = getattr(self._of(asked, "administrator"), f"get_{asked['kind']}")(*asked["path"])
        return words.rule_to(found) if asked["kind"] == "rule" else words.settings_to(found)

    def update(self, asked: Json) -> Json:
        administrator, kind, path = self._of(asked, "administrator"), asked["kind"], asked["path"]
        found = getattr(administrator, f"get_{kind}")(*path)
        changes = words.rule_from(asked["settings"]) if kind == "rule" else words.settings_from(asked["settings"])
        for name, value in changes.items():
            setattr(found, name, value)
        getattr(administrator, f"update_{kind}")(*path[:-1], found)
        return self.get(asked)

    def delete(self, asked: Json) -> None:
        getattr(self._of(asked, "administrator"), f"delete_{asked['kind']}")(*asked["path"])

    def names(self, asked: Json) -> list[str]:
        return [
            each.name for each in getattr(self._of(asked, "administrator"), f"list_{asked['kind']}s")(*asked["path"])
        ]

    def counts(self, asked: Json) -> Json:
        found = getattr(self._of(asked, "administrator"), f"get_{asked['kind']}_runtime_properties")(*asked["path"])
        return words.counts_to(found)

    def namespace(self, asked: Json) -> str:
        name: str = self._of(asked, "administrator").get_namespace_properties().name
        return name


def _close(thing: Any) -> None:
    with suppress(Exception):
        thing.close()


def main() -> None:
    calls = Calls()
    turn = threading.Lock()

    def say(message: Json) -> None:
        with turn:
            print(json.dumps(message), flush=True)

    def answer(asked: Json) -> None:
        try:
            say({"id": asked["id"], "value": getattr(calls, asked["call"])(asked)})
        except Exception as error:
            say({"id": asked["id"], "error": words.error_of(error)})

    say({"scenarios": []})
    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


main()
