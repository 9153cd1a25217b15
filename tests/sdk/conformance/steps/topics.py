"""Topics, subscriptions and rules; forwarding, duplicates, expiry, transactions."""

from __future__ import annotations

from conformance.clients import equal, refused, refused_in_words
from conformance.steps import scenario
from conformance.world import World


@scenario("publish to several subscriptions")
def publish(world: World) -> None:
    bus = world.connect()
    bus.publisher().send("plain", {"body": "both", "subject": "order", "properties": {"color": "red"}})
    equal(bus.subscriber("all").take(2), ["plain", "both"])
    equal((bus.subscriber("red").take(), bus.subscriber("orders").take()), (["both"], ["both"]))
    paths = ("all", "red", "orders", "big")
    equal([world.active(f"topic/Subscriptions/{name}") for name in paths], [0, 0, 0, 0])


@scenario("filter by SQL")
def sql(world: World) -> None:
    bus = world.connect()
    colors = ("red", "blue", "red")
    sent = ({"body": f"{color} {number}", "properties": {"color": color}} for number, color in enumerate(colors))
    bus.publisher().send(*sent)
    equal(bus.subscriber("red").take(2), ["red 0", "red 2"])
    equal(world.active("topic/Subscriptions/red"), 0)


@scenario("filter by correlation")
def correlation(world: World) -> None:
    bus = world.connect()
    bus.publisher().send({"body": "a", "subject": "order"}, {"body": "b", "subject": "Order"}, "c")
    equal(bus.subscriber("orders").take(), ["a"])
    equal(world.active("topic/Subscriptions/orders"), 0)


@scenario("change a copy by an action")
def action(world: World) -> None:
    bus = world.connect()
    bus.publisher().send({"body": "a", "properties": {"amount": 11, "secret": "s"}})
    changed = bus.subscriber("big").one().properties
    equal((changed["amount"], changed["mark"], "secret" in changed), (11, "big", False))
    equal(bus.subscriber("all").one().properties, {"amount": 11, "secret": "s"})


@scenario("publish a batch")
def batch(world: World) -> None:
    bus = world.connect()
    numbers = [f"m{number}" for number in range(20)]
    bus.publisher().send(*({"body": body, "properties": {"color": "red"}} for body in numbers), batch=True)
    equal(bus.subscriber("all").take(20), numbers)
    equal(bus.subscriber("red").take(20), numbers)


@scenario("publish a message that matches no rule")
def nobody(world: World) -> None:
    bus = world.connect()
    bus.publisher("quiet").send("a", {"body": "b", "properties": {"color": "blue"}})
    equal(world.active("quiet/Subscriptions/red"), 0)
    bus.publisher("quiet").send({"body": "c", "properties": {"color": "red"}})
    equal(bus.subscriber("red", "quiet").take(), ["c"])


@scenario("schedule to a topic, and cancel")
def schedule(world: World) -> None:
    bus = world.connect()
    sender = bus.publisher()
    numbers = sender.schedule(world.now(minutes=1), "kept", "cancelled")
    sender.cancel(numbers[1])
    equal(world.active("topic/Subscriptions/all"), 0)
    world.advance(60)
    equal(bus.subscriber("all").take(), ["kept"])
    equal(world.active("topic/Subscriptions/all"), 0)


@scenario("settle in a subscription")
def settle(world: World) -> None:
    bus = world.connect()
    bus.publisher().send("abandon", "defer", "dead-letter")
    receiver = bus.subscriber("all")
    abandon, defer, letter = receiver.receive(3)
    receiver.dead_letter(letter)
    receiver.defer(defer)
    receiver.abandon(abandon)
    again = receiver.one()
    equal((again.body, again.delivery_count), ("abandon", 1))
    receiver.complete(again)
    (fetched,) = receiver.deferred(defer.sequence)
    equal(fetched.body, "defer")
    receiver.complete(fetched)
    left = world.counters("topic/Subscriptions/all")
    equal((left.active, left.deferred), (0, 0))
    dead = bus.subscriber("all", part="dead").one()
    equal((dead.body, dead.reason), ("dead-letter", "a reason"))


@scenario("accept a session of a subscription")
def session(world: World) -> None:
    bus = world.connect()
    bus.publisher("talks").send({"session": "s", "body": "a"}, {"session": "t", "body": "b"})
    receiver = bus.accept_of_subscription("talks", "all", "s")
    receiver.state = "half-way"
    equal((receiver.take(), receiver.state), (["a"], "half-way"))
    equal(bus.accept_of_subscription("talks", "all").session, "t")


@scenario("receive from a missing subscription")
def not_there(world: World) -> None:
    bus = world.connect()
    with refused("not-found"):
        bus.subscriber("nobody").ask(1)
    with refused(world.kind("no-entity")):
        bus.publisher("nowhere").send("a")


@scenario("add and remove rules with the messaging client")
def rules(world: World) -> None:
    bus = world.connect()
    equal([rule["name"] for rule in bus.rules("all")], ["$Default"])
    bus.add_rule("all", "sql", {"sql": "n > 3"}, "SET seen = TRUE")
    bus.add_rule("all", "subject", {"correlation": {"subject": "x", "properties": {"color": "red"}}})
    bus.remove_rule("all", "$Default")
    found = {rule["name"]: rule for rule in bus.rules("all")}
    equal(set(found), {"sql", "subject"})
    equal((found["sql"]["filter"], found["sql"]["action"]), ({"sql": "n > 3"}, "SET seen = TRUE"))
    tested = found["subject"]["filter"]["correlation"]
    equal((tested["subject"], tested["properties"]), ("x", {"color": "red"}))


@scenario("change rules with the messaging client and publish at once")
def rules_decide(world: World) -> None:
    bus = world.connect()
    sender = bus.publisher()
    sender.send("before")
    bus.remove_rule("all", "$Default")
    sender.send("for nobody")
    bus.add_rule("all", "new", {"sql": "sys.Label = 'x'"}, "SET seen = TRUE")
    sender.send("not this", {"body": "after", "subject": "x"})
    receiver = bus.subscriber("all")
    before, after = receiver.receive(2)
    equal((before.body, after.body, after.properties["seen"]), ("before", "after", True))


@scenario("add a rule that is invalid or exists already")
def bad_rules(world: World) -> None:
    bus = world.connect()
    with refused_in_words("a = = 1"):
        bus.add_rule("all", "bad", {"sql": "a = = 1"})
    with refused_in_words("$Default"):
        bus.add_rule("all", "$Default", {"sql": "1 = 1"})
    equal([rule["name"] for rule in bus.rules("all")], ["$Default"])


# --- forwarding ---


@scenario("forward along a chain of queues")
def chain(world: World) -> None:
    bus = world.connect()
    bus.send("first", {"body": "a", "properties": {"n": 1}})
    message = bus.receiver("other").one()
    equal((message.body, message.properties), ("a", {"n": 1}))
    equal((world.active("first"), world.active("second")), (0, 0))


@scenario("forward from a subscription to a queue")
def onward(world: World) -> None:
    bus = world.connect()
    bus.publisher("relay").send("a")
    equal(bus.receiver("other").take(), ["a"])
    equal(world.active("relay/Subscriptions/onward"), 0)


@scenario("forward dead letters")
def forward_letters(world: World) -> None:
    bus = world.connect()
    bus.send("letters", "bad")
    receiver = bus.receiver("letters")
    receiver.dead_letter(receiver.one())
    found = bus.receiver("other").one()
    equal((found.body, found.reason, found.source), ("bad", "a reason", "letters"))


@scenario("forward a message that the destination refuses")
def astray(world: World) -> None:
    bus = world.connect()
    bus.send("astray", "without a session")
    lost = bus.receiver("astray", part="transfer").one()
    equal(lost.body, "without a session")
    if not lost.reason:
        raise AssertionError("it does not say why")


# --- duplicates ---


@scenario("send an id twice within the window")
def duplicate(world: World) -> None:
    bus = world.connect()
    bus.send("unique", {"body": "first", "id": "x"}, {"body": "again", "id": "x"}, {"body": "other", "id": "y"})
    equal(bus.receiver("unique").take(2), ["first", "other"])
    bus.send("unique", {"body": "settled, but known", "id": "x"})
    equal(world.active("unique"), 0)


@scenario("send an id again after the window")
def after_window(world: World) -> None:
    bus = world.connect()
    bus.send("unique", {"body": "first", "id": "x"})
    world.advance(61)
    bus.send("unique", {"body": "long after", "id": "x"})
    equal(bus.receiver("unique").take(2), ["first", "long after"])


@scenario("publish an id twice")
def duplicate_topic(world: World) -> None:
    bus = world.connect()
    bus.publisher("news").send({"body": "first", "id": "x"}, {"body": "again", "id": "x"})
    equal(bus.subscriber("all", "news").take(), ["first"])
    equal(world.active("news/Subscriptions/all"), 0)


# --- expiry ---


@scenario("send a message that expires")
def expires(world: World) -> None:
    bus = world.connect()
    bus.send("queue", {"body": "short", "ttl": 10_000}, "long")
    world.advance(11)
    equal(bus.receiver("queue").take(), ["long"])
    equal(world.active(), 0)


@scenario("find expired messages among the dead letters")
def expires_to_letters(world: World) -> None:
    bus = world.connect()
    bus.send("brief", {"body": "old", "ttl": 3_600_000})
    world.advance(11)
    dead = bus.receiver("brief", part="dead").one()
    equal((dead.body, dead.reason), ("old", "TTLExpiredException"))


@scenario("receive a message just before it expires")
def in_time(world: World) -> None:
    bus = world.connect()
    bus.send("brief", "a")
    world.advance(9)
    receiver = bus.receiver("brief")
    message = receiver.one()
    equal(message.expires, world.now() + 1_000)
    world.advance(5)
    receiver.complete(message)  # what is locked does not expire under the receiver
    equal((world.active("brief"), world.active("brief/$deadletterqueue")), (0, 0))


# --- transactions ---


@scenario("commit a transaction")
def commit(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "question")
    sender, receiver = bus.sender("queue"), bus.receiver("queue")
    message = receiver.one()
    transaction = sender.begin()
    receiver.complete(message, transaction=transaction)
    sender.send("answer", "more", transaction=transaction)
    equal(world.active(), 1)
    sender.commit(transaction)
    equal(world.active(), 2)
    equal(receiver.take(2), ["answer", "more"])


@scenario("roll a transaction back")
def roll_back(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "question")
    sender, receiver = bus.sender("queue"), bus.receiver("queue")
    message = receiver.one()
    transaction = sender.begin()
    receiver.complete(message, transaction=transaction)
    sender.send("never", transaction=transaction)
    sender.roll_back(transaction)
    equal(world.active(), 1)
    world.advance(61)
    equal(receiver.take(), ["question"])
    equal(world.active(), 0)


@scenario("settle in every way within a transaction")
def settle_within(world: World) -> None:
    bus = world.connect()
    bus.send("queue", "a", "b", "c", "d")
    sender, receiver = bus.sender("queue"), bus.receiver("queue")
    messages = receiver.receive(4)
    transaction = sender.begin()
    receiver.complete(messages[0], transaction=transaction)
    receiver.abandon(messages[1], transaction=transaction)
    receiver.defer(messages[2], transaction=transaction)
    receiver.dead_letter(messages[3], transaction=transaction)
    equal((world.counters().active, world.counters().deferred), (4, 0))
    equal(world.active("queue/$deadletterqueue"), 0)
    sender.commit(transaction)
    equal((world.counters().active, world.counters().deferred), (1, 1))
    equal(world.active("queue/$deadletterqueue"), 1)


@scenario("schedule within a transaction")
def schedule_within(world: World) -> None:
    bus = world.connect()
    sender = bus.sender("queue")
    kept, undone = sender.begin(), sender.begin()
    sender.schedule(world.now(minutes=1), "kept", transaction=kept)
    sender.schedule(world.now(minutes=1), "undone", transaction=undone)
    equal(world.counters().scheduled, 0)
    sender.commit(kept)
    sender.roll_back(undone)
    world.advance(60)
    equal(bus.receiver("queue").take(), ["kept"])
    equal(world.active(), 0)


@scenario("receive from one queue and send to another in a transaction")
def across(world: World) -> None:
    world.connect().send("queue", "question")
    bus = world.connect(across=True)
    receiver = bus.receiver("queue")
    message = receiver.one()
    sender = bus.sender("other")
    transaction = sender.begin()
    receiver.complete(message, transaction=transaction)
    sender.send("answer", transaction=transaction)
    equal((world.active(), world.active("other")), (1, 0))
    sender.commit(transaction)
    equal((world.active(), world.active("other")), (0, 1))
