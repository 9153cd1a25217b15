"""Execute the commands of `conformance/program.py` with the asyncio client of azure-servicebus."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from contextlib import suppress
from typing import Any

import words
from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
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

    async def reset(self, asked: Json) -> None:
        kept, self._kept = self._kept, {}
        # A client also closes the senders and receivers it made.
        closable = [thing for thing in kept.values() if hasattr(thing, "close")]
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.gather(*(thing.close() for thing in closable), return_exceptions=True)

    async def close(self, asked: Json) -> None:
        await self._kept.pop(asked["handle"]).close()

    async def open(self, asked: Json) -> str:
        options = words.client_options(asked)
        return self.keep(ServiceBusClient.from_connection_string(asked["connection"], **options))

    # --- sending ---

    async def sender(self, asked: Json) -> str:
        client = self._of(asked, "client")
        return self.keep(
            client.get_topic_sender(asked["topic"]) if asked.get("topic") else client.get_queue_sender(asked["queue"])
        )

    async def send(self, asked: Json) -> None:
        sender = self._of(asked, "sender")
        if not asked.get("batch"):
            for message in asked["messages"]:
                await sender.send_messages(words.message_from(message))
            return
        batch = await sender.create_message_batch()
        for message in asked["messages"]:
            batch.add_message(words.message_from(message))
        await sender.send_messages(batch)

    async def fill(self, asked: Json) -> int:
        sender = self._of(asked, "sender")
        batch = await sender.create_message_batch()
        with suppress(ValueError):
            while True:
                batch.add_message(words.message_from({"size": asked["size"]}))
        await sender.send_messages(batch)
        return len(batch)

    async def schedule(self, asked: Json) -> list[int]:
        messages = [words.message_from(message) for message in asked["messages"]]
        numbers: list[int] = await self._of(asked, "sender").schedule_messages(messages, words.moment(asked["at"]))
        return numbers

    async def cancel(self, asked: Json) -> None:
        await self._of(asked, "sender").cancel_scheduled_messages(asked["numbers"])

    # --- receiving ---

    async def receiver(self, asked: Json) -> str:
        return self.keep(self._receiver(asked, words.receiver_options(asked)))

    async def accept(self, asked: Json) -> Json:
        receiver = self._receiver(asked, words.receiver_options(asked) | words.session_options(asked))
        await receiver.__aenter__()
        session = receiver.session
        until = words.milliseconds(session.locked_until_utc)
        return {"handle": self.keep(receiver), "session": session.session_id, "until": until}

    def _receiver(self, asked: Json, options: Json) -> Any:
        client = self._of(asked, "client")
        if asked.get("topic"):
            return client.get_subscription_receiver(asked["topic"], asked["subscription"], **options)
        return client.get_queue_receiver(asked["queue"], **options)

    async def receive(self, asked: Json) -> list[Json]:
        receiver, count, wait = self._of(asked, "receiver"), asked["count"], asked["wait"]
        return self._told(await receiver.receive_messages(max_message_count=count, max_wait_time=wait))

    async def deferred(self, asked: Json) -> list[Json]:
        return self._told(await self._of(asked, "receiver").receive_deferred_messages(asked["numbers"]))

    async def peek(self, asked: Json) -> list[Json]:
        start = {} if asked.get("start") is None else {"sequence_number": asked["start"]}
        return self._told(await self._of(asked, "receiver").peek_messages(asked["count"], **start))

    def _told(self, messages: list[Any]) -> list[Json]:
        return [words.message_to(message, self.keep(message)) for message in messages]

    async def settle(self, asked: Json) -> None:
        receiver, message = self._of(asked, "receiver"), self._of(asked, "message")
        how = asked["how"]
        if how == "dead_letter":
            why = {"reason": asked.get("reason"), "error_description": asked.get("description")}
            await receiver.dead_letter_message(message, **why)
        else:
            await getattr(receiver, f"{how}_message")(message)

    async def renew(self, asked: Json) -> int | None:
        message = self._of(asked, "message")
        return words.milliseconds(await self._of(asked, "receiver").renew_message_lock(message))

    # --- sessions ---

    async def state(self, asked: Json) -> str | None:
        state = await self._of(asked, "receiver").session.get_state()
        return None if state is None else state.decode()

    async def set_state(self, asked: Json) -> None:
        await self._of(asked, "receiver").session.set_state(asked["state"])

    async def renew_session(self, asked: Json) -> int | None:
        return words.milliseconds(await self._of(asked, "receiver").session.renew_lock())

    async def sessions(self, asked: Json) -> list[str]:
        return [session async for session in self._of(asked, "client").list_queue_sessions(asked["queue"])]

    # --- receiving as it comes ---

    async def process(self, asked: Json) -> list[Json]:
        options = {"session_id": asked["session"]} if asked.get("session") else {}
        handled: list[Json] = []
        async with (
            self._receiver(asked, {"max_wait_time": 30, **options}) as receiver,
            AutoLockRenewer() as renewer,
        ):
            async for message in receiver:
                if asked.get("renew"):
                    renewer.register(receiver, message, max_lock_renewal_duration=60)
                await asyncio.sleep(asked.get("work", 0))
                await receiver.complete_message(message)
                handled.append(words.message_to(message, ""))
                if len(handled) == asked["count"]:
                    break
        return handled

    # --- administration ---

    async def administer(self, asked: Json) -> str:
        return self.keep(
            ServiceBusAdministrationClient.from_connection_string(
                asked["connection"], connection_verify=asked["trust"], retry_total=0
            )
        )

    async def create(self, asked: Json) -> Json:
        made = getattr(self._of(asked, "administrator"), f"create_{asked['kind']}")
        if asked["kind"] == "rule":
            return words.rule_to(await made(*asked["path"], **words.rule_from(asked["settings"])))
        return words.settings_to(await made(*asked["path"], **words.settings_from(asked["settings"])))

    async def get(self, asked: Json) -> Json:
        found = await getattr(self._of(asked, "administrator"), f"get_{asked['kind']}")(*asked["path"])
        return words.rule_to(found) if asked["kind"] == "rule" else words.settings_to(found)

    async def update(self, asked: Json) -> Json:
        administrator, kind, path = self._of(asked, "administrator"), asked["kind"], asked["path"]
        found = await getattr(administrator, f"get_{kind}")(*path)
        changes = words.rule_from(asked["settings"]) if kind == "rule" else words.settings_from(asked["settings"])
        for name, value in changes.items():
            setattr(found, name, value)
        await getattr(administrator, f"update_{kind}")(*path[:-1], found)
        return await self.get(asked)

    async def delete(self, asked: Json) -> None:
        await getattr(self._of(asked, "administrator"), f"delete_{asked['kind']}")(*asked["path"])

    async def names(self, asked: Json) -> list[str]:
        listed = getattr(self._of(asked, "administrator"), f"list_{asked['kind']}s")(*asked["path"])
        return [each.name async for each in listed]

    async def counts(self, asked: Json) -> Json:
        administrator, kind = self._of(asked, "administrator"), asked["kind"]
        return words.counts_to(await getattr(administrator, f"get_{kind}_runtime_properties")(*asked["path"]))

    async def namespace(self, asked: Json) -> str:
        name: str = (await self._of(asked, "administrator").get_namespace_properties()).name
        return name


async def main() -> None:
    calls = Calls()
    running: set[asyncio.Task[None]] = set()

    def say(message: Json) -> None:
        print(json.dumps(message), flush=True)

    async def answer(asked: Json) -> None:
        try:
            say({"id": asked["id"], "value": await getattr(calls, asked["call"])(asked)})
        except Exception as error:
            say({"id": asked["id"], "error": words.error_of(error)})

    say({"scenarios": []})
    while line := await asyncio.to_thread(sys.stdin.readline):
        task = asyncio.create_task(answer(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


asyncio.run(main())
