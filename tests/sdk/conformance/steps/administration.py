"""Administration: every kind of entity, counts, and errors."""

from __future__ import annotations

from conformance.clients import Administrator, Kind, bodies, equal, refused
from conformance.program import SdkError
from conformance.steps import scenario
from conformance.world import ROOT, World

NOTHING = ("not-found", "nothing")
"""The Go SDK returns nothing where others raise an error; its program returns this instead."""


@scenario("create, get, update and delete a queue")
def queue(world: World) -> None:
    administrator = world.administer()
    given = {"lock_ms": 30_000, "max_delivery": 5, "sessions": True, "metadata": "<notes> & more"}
    made = administrator.create("queue", "new", **given)
    wanted = given | {"status": "Active"}
    equal({word: made[word] for word in wanted}, wanted)
    found = administrator.get("queue", "new")
    equal({word: found[word] for word in wanted}, wanted)
    administrator.update("queue", "new", lock_ms=45_000, max_delivery=6, ttl_ms=3_600_000, dead_letter_expired=True)
    found = administrator.get("queue", "new")
    changed = wanted | {"lock_ms": 45_000, "max_delivery": 6, "ttl_ms": 3_600_000, "dead_letter_expired": True}
    equal({word: found[word] for word in changed}, changed)
    administrator.delete("queue", "new")
    with refused(*NOTHING):
        administrator.get("queue", "new")


@scenario("create a queue with the defaults")
def defaults(world: World) -> None:
    found = world.administer().create("queue", "new")
    wanted = {"lock_ms": 60_000, "max_delivery": 10, "status": "Active"}
    wanted |= dict.fromkeys(("sessions", "duplicates", "dead_letter_expired"), False)
    equal({word: found[word] for word in wanted}, wanted)


@scenario("create, get, update and delete a topic")
def topic(world: World) -> None:
    administrator = world.administer()
    made = administrator.create("topic", "new", duplicates=True, ttl_ms=7_200_000)
    equal((made["duplicates"], made["ttl_ms"]), (True, 7_200_000))
    administrator.update("topic", "new", metadata="notes", status="Disabled")
    found = administrator.get("topic", "new")
    equal((found["metadata"], found["status"], found["duplicates"]), ("notes", "Disabled", True))
    administrator.delete("topic", "new")
    with refused(*NOTHING):
        administrator.get("topic", "new")


@scenario("create, get, update and delete a subscription")
def subscription(world: World) -> None:
    administrator = world.administer()
    made = administrator.create("subscription", "topic", "new", lock_ms=45_000, max_delivery=7, forward_to="other")
    equal((made["lock_ms"], made["max_delivery"]), (45_000, 7))
    equal(str(made["forward_to"]).rsplit("/", 1)[-1], "other")
    administrator.update("subscription", "topic", "new", max_delivery=8, metadata="notes")
    found = administrator.get("subscription", "topic", "new")
    equal((found["lock_ms"], found["max_delivery"], found["metadata"]), (45_000, 8, "notes"))
    administrator.delete("subscription", "topic", "new")
    with refused(*NOTHING):
        administrator.get("subscription", "topic", "new")


@scenario("create, get, update and delete rules")
def rules(world: World) -> None:
    administrator = world.administer()
    equal(administrator.get("rule", "topic", "all", "$Default")["filter"], {"true": True})
    sql = {"sql": "color = 'red' AND size > 3"}
    administrator.create("rule", "topic", "all", "sql", filter=sql, action="SET mark = 'x'")
    tested = {"subject": "s", "correlation": "c", "id": "i", "properties": {"text": "<t> & 'q'"}}
    administrator.create("rule", "topic", "all", "correlation", filter={"correlation": tested})
    found = administrator.get("rule", "topic", "all", "sql")
    equal((found["filter"], found["action"]), (sql, "SET mark = 'x'"))
    equal(administrator.get("rule", "topic", "all", "correlation")["filter"], {"correlation": tested})
    administrator.update("rule", "topic", "all", "correlation", filter={"sql": "n = 1"})
    equal(administrator.get("rule", "topic", "all", "correlation")["filter"], {"sql": "n = 1"})
    administrator.delete("rule", "topic", "all", "$Default")
    equal(administrator.names("rule", "topic", "all"), ["sql", "correlation"])


@scenario("list more queues than a page holds")
def pages(world: World) -> None:
    administrator = world.administer()
    before = administrator.names("queue")
    names = [f"z{number:03}" for number in range(105)]
    for name in names:
        administrator.create("queue", name)
    equal(administrator.names("queue"), sorted([*before, *names]))


@scenario("list topics, subscriptions and rules")
def lists(world: World) -> None:
    administrator = world.administer()
    equal(administrator.names("topic"), ["news", "quiet", "relay", "talks", "topic"])
    equal(administrator.names("subscription", "topic"), ["all", "big", "orders", "red"])
    equal(administrator.names("rule", "topic", "red"), ["red"])


@scenario("count the messages of a queue")
def counts(world: World) -> None:
    administrator, bus = world.administer(), world.connect()
    bus.send("queue", "a", "b", "dead")
    bus.sender("queue").schedule(world.now(minutes=60), "later")
    receiver = bus.receiver("queue")
    receiver.dead_letter(receiver.receive(3)[2])
    found = administrator.counts("queue", "queue")
    wanted = {"active": 2, "dead": 1, "scheduled": 1, "transfer_dead": 0, "total": 4}
    equal({word: found[word] for word in wanted}, wanted)
    if not found["size"] > 0:
        raise AssertionError("messages have no size")


@scenario("count the messages of a topic and of its subscriptions")
def topic_counts(world: World) -> None:
    administrator, bus = world.administer(), world.connect()
    bus.publisher().send("a", "b")
    bus.publisher().schedule(world.now(minutes=60), "later")
    receiver = bus.subscriber("all")
    receiver.dead_letter(receiver.receive(2)[1])
    found = administrator.counts("topic", "topic")
    equal((found["subscriptions"], found["scheduled"]), (4, 1))
    found = administrator.counts("subscription", "topic", "all")
    equal((found["active"], found["dead"], found["total"]), (1, 1, 2))


@scenario("get the properties of the namespace")
def namespace(world: World) -> None:
    equal(world.administer().namespace(), "sbemulatorns")


@scenario("create an entity that exists already")
def exists(world: World) -> None:
    administrator = world.administer()
    with refused("exists"):
        administrator.create("queue", "queue")
    with refused("exists"):
        administrator.create("topic", "topic")
    with refused("exists"):
        administrator.create("subscription", "topic", "all")
    with refused("exists"):
        administrator.create("rule", "topic", "all", "$Default", filter={"sql": "1 = 1"})


@scenario("administer a missing entity")
def missing(world: World) -> None:
    administrator = world.administer()
    paths: dict[Kind, tuple[str, ...]] = {
        "queue": ("nowhere",),
        "topic": ("nowhere",),
        "subscription": ("topic", "nobody"),
        "rule": ("topic", "all", "nothing"),
    }
    for kind, path in paths.items():
        with refused(*NOTHING):
            administrator.get(kind, *path)
        with refused("not-found"):
            administrator.delete(kind, *path)


@scenario("create an entity with invalid settings")
def impossible(world: World) -> None:
    administrator = world.administer()
    with refused("bad-request"):
        administrator.create("queue", "new", lock_ms=600_000)
    with refused("bad-request"):
        administrator.create("queue", "new", forward_to="nowhere")
    with refused("bad-request"):
        administrator.create("rule", "topic", "all", "bad", filter={"sql": "a = = 1"})
    nothing_new(administrator)
    equal(administrator.names("rule", "topic", "all"), ["$Default"])


def nothing_new(administrator: Administrator) -> None:
    if "new" in administrator.names("queue"):
        raise AssertionError("it is there all the same")


@scenario("change a setting that is fixed")
def fixed(world: World) -> None:
    administrator = world.administer()
    with refused("bad-request"):
        administrator.update("queue", "queue", sessions=True)
    equal(administrator.get("queue", "queue")["sessions"], False)


@scenario("administer with a wrong key")
def wrong_key(world: World) -> None:
    with refused("unauthorized"):
        world.administer(key=(ROOT, "guessed")).create("queue", "new")
    nothing_new(world.administer())


@scenario("administer without the right to manage")
def no_right(world: World) -> None:
    administrator = world.administer(key=("listener", "listener-key"))
    with refused("unauthorized"):
        administrator.create("queue", "new")
    nothing_new(world.administer())


@scenario("use a queue as soon as it is created")
def use(world: World) -> None:
    world.administer().create("queue", "new", duplicates=True, window_ms=60_000)
    bus = world.connect()
    bus.send("new", {"body": "a", "id": "x"}, {"body": "again", "id": "x"})
    equal(bus.receiver("new").take(), ["a"])
    equal(world.active("new"), 0)


@scenario("change rules and publish at once")
def rules_decide(world: World) -> None:
    administrator, bus = world.administer(), world.connect()
    sender = bus.publisher()
    sender.send("before")
    administrator.delete("rule", "topic", "all", "$Default")
    sender.send("for nobody")
    administrator.create("rule", "topic", "all", "new", filter={"sql": "n > 3"}, action="SET seen = TRUE")
    sender.send({"body": "too few", "properties": {"n": 3}}, {"body": "after", "properties": {"n": 4}})
    messages = bus.subscriber("all").receive(2)
    equal(bodies(messages), ["before", "after"])
    equal(messages[1].properties["seen"], True)


@scenario("delete a queue that is being received from")
def delete(world: World) -> None:
    administrator, bus = world.administer(), world.connect()
    bus.send("queue", "a", "b")
    receiver = bus.receiver("queue")
    receiver.one()
    administrator.delete("queue", "queue")
    try:
        equal(receiver.ask(1, wait=5), [])
    except SdkError as error:  # some SDKs raise an error, others return nothing
        equal(error.kind, "not-found")
    with refused(world.kind("no-entity")):
        bus.receiver("queue").ask(1)
    administrator.create("queue", "queue")
    equal(administrator.counts("queue", "queue")["total"], 0)


@scenario("disable and enable a queue")
def disable(world: World) -> None:
    administrator = world.administer()
    administrator.update("queue", "queue", status="Disabled")
    with refused("disabled"):
        world.connect().send("queue", "a")
    administrator.update("queue", "queue", status="Active")
    world.connect().send("queue", "a")
    equal(world.active(), 1)
