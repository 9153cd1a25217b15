"""Channels and handles: invalid and too many sessions and links."""

from __future__ import annotations

from peeklock.amqp.performatives import Attach, Begin, Detach, Disposition, End, Flow
from peeklock.amqp.types import Symbol
from peeklock.client.connection import SESSION_FILTER
from tools.hostile.attack import attack, require
from tools.hostile.lines import Line, frame
from tools.hostile.victim import (
    BEGIN,
    CLOSE,
    QUEUE,
    SESSIONS,
    TOPIC,
    Victim,
    credit,
    message,
    receiver,
    sender,
    transfer,
)

CHANNELS, HANDLES = 5000, 4096
"""The broker's limit."""


def _ended_for(line: Line) -> str | None:
    """Return the condition with which the broker ends the session."""
    error = line.expect(End).error
    return None if error is None else str(error.condition)


@attack(answer="closes with `amqp:not-allowed`", log="amqp:not-allowed")
def channels_without_a_session(victim: Victim) -> None:
    """Frames on channels that were never begun, above the limit, begun twice, or begun as an answer to nothing."""
    for said in (
        frame(sender(), 7),
        frame(sender(), 65535),
        frame(BEGIN) + frame(BEGIN),
        frame(BEGIN, CHANNELS),
        frame(BEGIN, 65535),
        frame(Begin(remote_channel=0, next_outgoing_id=0, incoming_window=1, outgoing_window=1)),
        frame(End(), 3),
    ):
        with victim.opened() as line:
            line.send(said)
            condition = line.close_condition()
            require(condition == "amqp:not-allowed", f"the channel was answered with {condition}")


@attack(answer="ignores late frames, and accepts a new session on the channel", log="connection closed")
def frames_after_the_end(victim: Victim) -> None:
    """Links, transfers and detaches on a channel whose session has ended, and the channel used again."""
    with victim.sending() as line:
        line.send(frame(End()))
        line.expect(End)
        line.send(frame(sender(handle=3)), transfer(0, message()), frame(Detach(handle=0)), frame(End()))
        line.send(frame(BEGIN))
        line.expect(Begin)
        line.send(frame(sender()))
        line.expect(Flow)
        line.send(CLOSE)
        line.answer()


@attack(
    answer="ends the session with `handle-in-use`, `unattached-handle`, `resource-limit-exceeded` or `not-allowed`",
    log="session ended.*(handle-in-use|unattached-handle|resource-limit-exceeded)",
)
def handles_out_of_order(victim: Victim) -> None:
    """Handles above the limit, attached twice or never attached, and transfers on a receiving link."""
    for said, condition in (
        (frame(sender(handle=0)) * 2, "amqp:session:handle-in-use"),
        (frame(sender(handle=HANDLES)), "amqp:resource-limit-exceeded"),
        (frame(sender(handle=0xFFFFFFFF)), "amqp:resource-limit-exceeded"),
        (frame(Detach(handle=5)), "amqp:session:unattached-handle"),
        (credit(1, handle=5), "amqp:session:unattached-handle"),
        (transfer(0, message(), handle=5), "amqp:session:unattached-handle"),
        (frame(receiver(handle=0)) + transfer(0, message()), "amqp:not-allowed"),
    ):
        with victim.begun() as line:
            line.send(said)
            ended = next((each for each in line.frames() if isinstance(each, End)), None)
            given = None if ended is None or ended.error is None else str(ended.error.condition)
            require(given == condition, f"the session was ended with {given}, not with {condition}")


@attack(answer="allows 4096 links in a session and ends it with `resource-limit-exceeded`", log="session ended")
def link_flood(victim: Victim) -> None:
    """As many links as a session has handles, all to one queue, and another one."""
    with victim.begun() as line:
        for handle in range(HANDLES):
            line.send(frame(sender(handle=handle)))
            if handle % 64 == 63:
                for _ in range(64):
                    line.expect(Attach)
        line.send(frame(sender(handle=HANDLES)))
        require(_ended_for(line) == "amqp:resource-limit-exceeded", "there is no end of links")


@attack(answer="allows 5000 links on a connection and refuses further ones", log="link refused.*no more are allowed")
def links_in_many_sessions(victim: Victim) -> None:
    """Links in several sessions, more than a connection may have."""
    with victim.opened() as line:
        refused = 0
        for channel in range(2):
            line.send(frame(BEGIN, channel))
            line.expect(Begin)
            for first in range(0, 2560, 64):
                line.send(*[frame(sender(handle=handle), channel) for handle in range(first, first + 64)])
                refused += sum(line.is_link_refused() for _ in range(64))
        require(refused == 2 * 2560 - 5000, f"{refused} links were refused")


@attack(answer="allows 5000 sessions on a connection; one more is `amqp:not-allowed`", log="amqp:not-allowed")
def session_flood(victim: Victim) -> None:
    """A session on every channel, and one on a channel above the limit."""
    with victim.opened() as line:
        for channel in range(CHANNELS):
            line.send(frame(BEGIN, channel))
            if channel % 100 == 99:
                for _ in range(100):
                    line.expect(Begin)
        line.send(frame(BEGIN, CHANNELS))
        require(line.close_condition() == "amqp:not-allowed", "there is no end of sessions")


@attack(answer="begins and ends them, one after the other", log="connection closed")
def sessions_that_come_and_go(victim: Victim) -> None:
    """3,000 sessions, each begun, used for one attach, and ended at once."""
    with victim.opened() as line:
        for _ in range(30):
            line.send(*[frame(BEGIN) + frame(sender()) + frame(End()) for _ in range(100)])
            for _ in range(100):
                line.expect(End)
        line.send(CLOSE)
        line.answer()


@attack(answer="refuses to resume links, with `amqp:not-implemented`", log="link|connection closed")
def links_to_resume(victim: Victim) -> None:
    """Attaches with 10,000 unsettled deliveries of a link that never existed."""
    with victim.begun() as line:
        attach = sender()
        attach.unsettled = {number.to_bytes(4, "big"): None for number in range(10_000)}
        line.send(frame(attach))
        line.expect(Attach)
        line.expect_refusal("amqp:not-implemented")
        line.send(CLOSE)
        line.answer()


@attack(answer="refuses each link with the reason", log="link refused|amqp:decode-error")
def filters_that_make_no_sense(victim: Victim) -> None:
    """Session filters of every wrong type, 10,000 filters at once, and session filters at queues without sessions."""
    with victim.begun() as line:
        for handle, (address, chosen) in enumerate(
            (
                (SESSIONS, {SESSION_FILTER: 7}),
                (SESSIONS, {SESSION_FILTER: ["a"]}),
                (SESSIONS, {SESSION_FILTER: "x" * 100_000}),
                (SESSIONS, None),
                (QUEUE, {SESSION_FILTER: "a"}),
                (QUEUE, {SESSION_FILTER: None}),
                (f"{TOPIC}/subscriptions/none", {Symbol(f"f{number}"): "x" for number in range(10_000)}),
            )
        ):
            line.send(frame(receiver(address, handle, filter=chosen)))
            require(line.is_link_refused(), f"the filter {str(chosen)[:60]} on '{address}' was accepted")


@attack(answer="ends the session: a decreasing range is `amqp:invalid-field`", log="session ended")
def disposition_ranges(victim: Victim) -> None:
    """Dispositions of 2^31 deliveries that never existed, in both roles, and of 2^32 from 1 to 0."""
    for role in (True, False):
        with victim.sending() as line:
            # The work is bounded by the number of existing deliveries, so these are cheap.
            line.send(*[frame(Disposition(role=role, first=0, last=0x7FFFFFFF, settled=True))] * 500)
            line.send(frame(Disposition(role=role, first=1, last=0, settled=True)))
            require(_ended_for(line) == "amqp:invalid-field", "a disposition of 2^32 deliveries was accepted")
