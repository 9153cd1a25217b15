"""The checker finds the violations in a history, and none in a correct one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from stories import Story

from tools.chaos.checker import check
from tools.chaos.entities import (
    CLAIMED,
    DELETED,
    INVOICES,
    LOCK_MS,
    ORDERS,
    PLAIN,
    SCHEDULED,
    SESSIONS,
    SUBSCRIPTIONS,
    TOPIC,
    UNIQUE,
    WINDOW_MS,
    dead_letters,
)
from tools.chaos.history import BrokerFailure, Disposition, Leftover, Outcome, Way, dump, load
from tools.chaos.lock_checks import SLACK_MS

NO, UNKNOWN = Outcome.NO, Outcome.UNKNOWN
ROOT = Path(__file__).parents[2]


@pytest.fixture
def story() -> Story:
    return Story()


# --- messages that are lost ---


def test_a_message_that_was_sent_received_and_completed_is_no_violation(story: Story) -> None:
    story.send("a")
    story.finish("a")
    assert story.broken == []


def test_an_acknowledged_message_that_never_came_is_lost(story: Story) -> None:
    story.send("a")
    assert story.broken == ["lost"]


@pytest.mark.parametrize("outcome", [NO, UNKNOWN])
def test_an_unacknowledged_message_may_be_missing(story: Story, outcome: Outcome) -> None:
    story.send("a", outcome=outcome)
    assert story.broken == []


def test_a_message_with_unknown_outcome_may_be_received(story: Story) -> None:
    story.send("a", outcome=UNKNOWN)
    story.finish("a")
    assert story.broken == []


def test_a_message_whose_completion_is_in_doubt_may_be_missing(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), outcome=UNKNOWN)
    assert story.broken == []


def test_a_message_whose_completion_was_refused_must_still_be_there(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), outcome=NO, error="amqp:internal-error")
    assert story.broken == ["lost"]


def test_a_message_may_end_among_the_dead_letters(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.DEAD_LETTER)
    story.finish("a", entity=dead_letters(PLAIN))
    assert story.broken == []


def test_a_dead_letter_that_is_nowhere_is_lost(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.DEAD_LETTER)
    assert story.broken == ["lost"]


def test_a_message_that_is_in_one_subscription_only_is_lost_in_the_other(story: Story) -> None:
    story.send("a", entity=TOPIC)
    story.finish("a", entity=SUBSCRIPTIONS[0])
    assert story.broken == ["lost", "together"]


def test_a_deferred_message_that_is_nowhere_is_lost(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.DEFER)
    assert story.broken == ["lost"]


def test_messages_in_flight_to_a_receive_and_delete_link_may_be_lost(story: Story) -> None:
    story.send("a", "b", entity=DELETED)
    story.lose(DELETED, 2)
    assert story.broken == []


def test_no_more_messages_may_be_lost_than_were_in_flight(story: Story) -> None:
    story.send("a", "b", entity=DELETED)
    story.lose(DELETED, 1)
    assert story.broken == ["lost"]


def test_messages_in_flight_excuse_no_loss_in_another_entity(story: Story) -> None:
    story.send("a")
    story.lose(DELETED, 1)
    assert story.broken == ["lost"]


# --- messages that are damaged ---


def test_a_message_that_came_with_another_byte_is_changed(story: Story) -> None:
    story.send("a")
    story.finish("a", changed="its body")
    assert story.broken == ["changed"]


@pytest.mark.parametrize("place", [PLAIN, dead_letters(PLAIN)])
def test_a_message_that_is_reported_as_damaged_is_not_lost(story: Story, place: str) -> None:
    story.send("a")
    story.damage_files()
    story.report("a", entity=place)
    assert story.broken == []


def test_a_report_excuses_no_other_message(story: Story) -> None:
    story.send("a")
    story.send("b")
    story.damage_files()
    story.report("a")
    assert story.broken == ["lost"]


def test_no_more_messages_are_reported_than_were_damaged(story: Story) -> None:
    story.send("a")
    story.send("b")
    story.damage_files()
    story.report("a")
    story.report("b", 2)
    assert story.broken == ["damaged"]


def test_the_copies_of_a_message_are_damaged_together(story: Story) -> None:
    story.send("a", entity=TOPIC)
    story.damage_files()
    for path in SUBSCRIPTIONS:
        story.report("a", entity=path)
    assert story.broken == []


def test_a_message_reported_as_damaged_is_not_delivered(story: Story) -> None:
    story.send("a")
    story.damage_files()
    story.report("a")
    story.finish("a")
    assert story.broken == ["damaged"]


def test_a_damaged_message_counts_for_its_batch_and_its_transaction(story: Story) -> None:
    story.send("a", "b")
    story.send("order", entity=ORDERS)
    story.trade("c", "d", outcome=UNKNOWN)
    story.damage_files()
    story.damage_files()
    story.report("a")
    story.report("c", entity=INVOICES)
    story.finish("b", first=2)
    story.finish("d", entity=INVOICES, first=2)
    assert story.broken == []


def test_a_transaction_of_which_a_damaged_message_is_left_was_committed(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade("a", outcome=UNKNOWN)
    story.damage_files()
    story.report("a", entity=INVOICES)
    assert story.broken == []


def test_an_id_whose_message_is_damaged_is_stored(story: Story) -> None:
    story.send("a", entity=UNIQUE, key="k")
    story.send("b", entity=UNIQUE, key="k")
    story.damage_files()
    story.report("a", entity=UNIQUE)
    assert story.broken == []


def test_a_damaged_message_of_a_session_is_skipped(story: Story) -> None:
    for id in ("a", "b"):
        story.send(id, entity=SESSIONS, session="s")
    hold = story.accept()
    story.settle(story.receive_of(hold, "a", 1), Disposition.ABANDON)
    story.restart()
    story.damage_files()
    story.report("a", entity=SESSIONS)
    hold = story.accept()
    story.settle(story.receive_of(hold, "b", 2))
    assert story.broken == []


# --- messages that should not come ---


def test_a_message_that_was_refused_must_not_come(story: Story) -> None:
    story.send("a", outcome=NO, error="amqp:internal-error")
    story.finish("a")
    assert story.broken == ["unwanted"]


def test_a_message_that_was_never_sent_must_not_be_received(story: Story) -> None:
    story.finish("a")
    assert story.broken == ["unwanted"]


def test_a_message_that_was_never_sent_must_not_be_dead_lettered(story: Story) -> None:
    story.finish("a", entity=dead_letters(PLAIN))
    assert story.broken == ["unwanted"]


def test_a_message_must_not_come_from_where_it_was_not_sent(story: Story) -> None:
    story.send("a", outcome=UNKNOWN)
    story.finish("a", entity=ORDERS)
    assert story.broken == ["unwanted"]


@pytest.mark.parametrize("disposition", [Disposition.COMPLETE, Disposition.DEFER, Disposition.DEAD_LETTER])
def test_a_message_must_not_be_delivered_after_its_settlement(story: Story, disposition: Disposition) -> None:
    story.send("a")
    story.settle(story.receive("a"), disposition)
    story.finish("a", count=1)
    assert story.broken == ["returned"]


def test_a_message_may_be_delivered_again_when_its_completion_is_in_doubt(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), outcome=UNKNOWN)
    story.finish("a", count=1)
    assert story.broken == []


def test_a_deferred_message_is_fetched(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.DEFER)
    story.finish("a", way=Way.FETCH, count=1)
    assert story.broken == []


def test_a_message_of_a_session_must_not_be_delivered_after_its_completion(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s")
    story.settle(story.receive_of(story.accept(), "a", 1))
    story.settle(story.receive_of(story.accept(), "a", 1, count=1))
    assert story.broken == ["returned"]


def test_a_message_received_and_deleted_must_not_be_delivered_again(story: Story) -> None:
    story.send("a", entity=DELETED)
    story.receive("a", entity=DELETED, way=Way.DELETE)
    story.receive("a", entity=DELETED, way=Way.DELETE)
    assert story.broken == ["returned"]


def test_a_message_received_and_deleted_must_not_exist_at_the_end(story: Story) -> None:
    story.send("a", entity=DELETED)
    story.receive("a", entity=DELETED, way=Way.DELETE)
    story.finish("a", entity=DELETED)
    assert story.broken == ["returned"]


def test_a_deferred_message_must_not_be_delivered_after_its_completion(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.DEFER)
    story.settle(story.receive("a", way=Way.FETCH, count=1))
    story.finish("a", way=Way.FETCH, count=2)
    assert story.broken == ["returned"]


def test_a_dead_letter_must_not_be_delivered_after_its_completion(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.DEAD_LETTER)
    story.finish("a", entity=dead_letters(PLAIN))
    story.finish("a", entity=dead_letters(PLAIN))
    assert story.broken == ["returned"]


def test_a_prefetched_message_may_be_recorded_after_another_client_completed_it(story: Story) -> None:
    story.send("a")
    attached = story.now
    buffered_until = int(story.now) + LOCK_MS
    story.wait(LOCK_MS + 1000)
    story.settle(story.receive("a", count=1))
    story.receive("a", start=attached, end=story.now + 10, until=buffered_until)
    assert story.broken == []


def test_the_lock_tells_that_a_prefetched_message_came_after_its_completion(story: Story) -> None:
    story.send("a")
    attached = story.now
    story.settle(story.receive("a", count=1))
    story.wait(1000)
    story.receive("a", start=attached, end=story.now + 10, until=int(story.now) + LOCK_MS)
    assert story.broken == ["returned"]


# --- numbers and order ---


def test_a_number_belongs_to_one_message(story: Story) -> None:
    story.send("a")
    story.send("b")
    story.finish("a", first=7)
    story.finish("b", first=7)
    assert story.broken == ["numbers"]


def test_a_message_is_stored_once(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a", 1), outcome=UNKNOWN)
    story.finish("a", first=2)
    assert story.broken == ["numbers"]


def test_a_scheduled_message_shares_its_number_with_no_other(story: Story) -> None:
    send = story.send("a", entity=SCHEDULED, due=int(story.now) + 9000, numbers=(5,))
    story.cancel(send)
    story.send("b", entity=SCHEDULED)
    story.finish("b", entity=SCHEDULED, first=5)
    assert story.broken == ["numbers"]


def test_the_numbers_of_scheduled_messages_are_returned_once(story: Story) -> None:
    for id in "ab":
        story.cancel(story.send(id, entity=SCHEDULED, due=int(story.now) + 9000, numbers=(5,)))
    assert story.broken == ["numbers"]


def test_a_message_sent_later_has_the_higher_number(story: Story) -> None:
    story.send("a")
    story.send("b")
    story.finish("b", "a")
    assert story.broken == ["order"]


def test_each_message_with_too_low_a_number_is_a_violation(story: Story) -> None:
    for id in "abc":
        story.send(id)
    story.finish("b", "c", "a")
    assert story.broken == ["order", "order"]


def test_numbers_of_scheduled_and_unacknowledged_messages_are_not_checked(story: Story) -> None:
    due = int(story.now) + 5000
    story.send("a", entity=SCHEDULED, due=due)
    story.send("b", entity=SCHEDULED, outcome=UNKNOWN)
    story.send("c", entity=SCHEDULED)
    story.finish("c", "b", "a", entity=SCHEDULED, enqueued=due)
    assert story.broken == []


def test_messages_sent_at_the_same_time_have_numbers_in_any_order(story: Story) -> None:
    first = story.send("a")
    second = story.send("b")
    story.records[0] = replace(first, end=second.end)
    story.finish("b", "a")
    assert story.broken == []


# --- sessions ---


def test_the_messages_of_a_session_come_in_order(story: Story) -> None:
    story.send("a", "b", entity=SESSIONS, session="s")
    hold = story.accept()
    for number, id in enumerate("ab", 1):
        story.settle(story.receive_of(hold, id, number))
    assert story.broken == []


def test_a_message_of_a_session_must_not_overtake_another(story: Story) -> None:
    story.send("a", "b", entity=SESSIONS, session="s")
    hold = story.accept()
    story.settle(story.receive_of(hold, "b", 2))
    story.settle(story.receive_of(story.accept(), "a", 1))
    assert story.broken == ["session order"]


@pytest.mark.parametrize(("disposition", "outcome"), [(Disposition.ABANDON, Outcome.OK), (Disposition.COMPLETE, NO)])
def test_a_returned_message_of_a_session_is_active_again(
    story: Story, disposition: Disposition, outcome: Outcome
) -> None:
    story.send("a", "b", entity=SESSIONS, session="s")
    story.settle(story.receive_of(story.accept(), "a", 1), disposition, outcome)
    story.settle(story.receive_of(story.accept(), "b", 2))
    story.settle(story.receive_of(story.accept(), "a", 1, count=1))
    assert story.broken == ["session order"]


def test_a_message_of_a_session_that_was_not_acknowledged_need_not_wait(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s", outcome=UNKNOWN)
    story.send("b", entity=SESSIONS, session="s")
    story.settle(story.receive_of(story.accept(), "b", 2))
    story.settle(story.receive_of(story.accept(), "a", 1))
    assert story.broken == []


def test_within_a_hold_numbers_go_up(story: Story) -> None:
    hold = story.accept()
    story.send("a", "b", entity=SESSIONS, session="s")
    story.settle(story.receive_of(hold, "b", 2))
    story.settle(story.receive_of(hold, "a", 1))
    assert story.broken == ["session order"]


def test_an_abandoned_message_of_a_session_takes_its_old_place(story: Story) -> None:
    story.send("a", "b", entity=SESSIONS, session="s")
    hold = story.accept()
    first, second = story.receive_of(hold, "a", 1), story.receive_of(hold, "b", 2)
    story.settle(first, Disposition.ABANDON)
    story.settle(second)
    story.settle(story.receive_of(hold, "a", 1, count=1))
    assert story.broken == []


def test_a_deferred_message_of_a_session_does_not_wait_and_is_fetched_in_any_order(story: Story) -> None:
    story.send("a", "b", entity=SESSIONS, session="s")
    hold = story.accept()
    story.settle(story.receive_of(hold, "a", 1), Disposition.DEFER)
    hold = story.accept()
    story.settle(story.receive_of(hold, "b", 2))
    story.settle(story.receive_of(hold, "a", 1, way=Way.FETCH, count=1))
    assert story.broken == []


def test_a_message_of_a_session_that_was_not_returned_comes_once_in_a_hold(story: Story) -> None:
    story.send("a", "b", entity=SESSIONS, session="s")
    hold = story.accept()
    story.receive_of(hold, "a", 1)
    story.settle(story.receive_of(hold, "b", 2))
    story.settle(story.receive_of(hold, "a", 1, count=1))
    assert story.broken == ["session order"]


def test_the_holder_of_a_session_gets_no_message_of_another_session(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="other")
    hold = story.accept("s")
    story.settle(story.receive("a", entity=SESSIONS, session="other", hold=hold.name))
    assert story.broken == ["session order"]


def test_a_session_has_one_holder(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s")
    first, second = story.accept(), story.accept()
    story.call(first, "renew")
    story.settle(story.receive_of(second, "a", 1))
    assert story.broken == ["session locks"]


def test_a_former_holder_gets_no_message_of_the_session(story: Story) -> None:
    story.send("a", "b", entity=SESSIONS, session="s")
    first = story.accept()
    story.call(first, "renew")
    second = story.accept()
    story.settle(story.receive_of(second, "a", 1))
    story.receive_of(first, "b", 2)
    story.settle(story.receive_of(second, "b", 2))
    assert story.broken == ["session locks"]


def test_a_former_holder_settles_nothing_in_the_session(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s")
    taken = story.receive_of(story.accept(), "a", 1)
    story.accept()
    story.settle(taken)
    assert story.broken == ["session locks"]


def test_requests_of_a_former_holder_may_be_refused(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s")
    hold = story.accept()
    taken = story.receive_of(hold, "a", 1)
    next_hold = story.accept()
    story.settle(taken, outcome=NO, error="com.microsoft:session-lock-lost")
    story.call(hold, "renew", outcome=NO)
    story.settle(story.receive_of(next_hold, "a", 1))
    assert story.broken == []


def test_a_session_goes_from_one_holder_to_the_next(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s")
    story.call(story.accept(), "renew")
    story.settle(story.receive_of(story.accept(), "a", 1))
    assert story.broken == []


def test_the_state_of_a_session_is_the_last_one_set(story: Story) -> None:
    hold = story.accept()
    story.call(hold, "set", "one")
    story.call(hold, "set", "two", UNKNOWN)
    story.call(story.accept(), "get", "one")
    story.call(story.accept(), "get", "two")
    assert story.broken == []


def test_a_state_that_was_set_is_not_forgotten(story: Story) -> None:
    hold = story.accept()
    story.call(hold, "set", "one")
    story.call(hold, "set", "two")
    story.call(story.accept(), "get", "one")
    assert story.broken == ["states"]


def test_a_state_in_doubt_may_hold_before_its_client_gives_up(story: Story) -> None:
    story.call(story.accept(), "set", "one", UNKNOWN)
    story.call(story.accept(), "get", "one")
    story.records[1] = replace(story.records[1], end=story.now + 5000)
    assert story.broken == []


def test_calls_that_do_not_set_a_state_do_not_change_it(story: Story) -> None:
    hold = story.accept()
    story.call(hold, "set", "one")
    story.call(hold, "renew")
    story.call(hold, "get", outcome=NO)
    story.call(hold, "get", outcome=UNKNOWN)
    assert story.broken == []
    story.call(hold, "get", None)
    assert story.broken == ["states"]


def test_a_state_that_was_refused_is_not_set(story: Story) -> None:
    hold = story.accept()
    story.call(hold, "set", "one", NO)
    story.call(hold, "get", None)
    assert story.broken == []
    story.call(hold, "get", "one")
    assert story.broken == ["states"]


# --- locks and counts ---


def test_a_locked_message_is_with_one_receiver(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.settle(story.receive("a", count=1))
    assert story.broken == ["message locks"]


def test_a_later_settlement_of_the_first_receiver_excuses_no_second_one(story: Story) -> None:
    story.send("a")
    first = story.receive("a")
    story.receive("a", count=1)
    story.settle(first)
    assert story.broken == ["message locks"]


def test_a_message_is_delivered_again_after_its_lock(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.wait(LOCK_MS)
    story.settle(story.receive("a", count=1))
    assert story.broken == []


def test_a_lock_that_was_renewed_lasts_longer(story: Story) -> None:
    story.send("a")
    first = story.receive("a")
    story.wait(LOCK_MS - 500)
    story.renew(first)
    story.wait(1000)
    story.settle(story.receive("a", count=1))
    assert story.broken == ["message locks"]


def test_a_deferred_message_is_locked_for_the_receiver_that_fetched_it(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.DEFER)
    story.receive("a", way=Way.FETCH, count=1)
    story.settle(story.receive("a", way=Way.FETCH, count=2))
    assert story.broken == ["message locks"]


def test_a_receiver_that_was_answered_lock_lost_has_no_lock(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), outcome=NO, error="com.microsoft:message-lock-lost")
    story.settle(story.receive("a", count=1))
    assert story.broken == []


def test_a_restart_ends_locks_and_loses_unstored_counts(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.restart()
    story.settle(story.receive("a"))
    assert story.broken == []


def test_a_restart_before_or_after_excuses_nothing(story: Story) -> None:
    story.send("a")
    story.restart()
    story.receive("a")
    story.settle(story.receive("a", count=1))
    story.restart()
    assert story.broken == ["message locks"]


@pytest.mark.parametrize("offset", [30_000, -30_000, 3 * 24 * 3600 * 1000])
def test_a_clock_that_jumps_ends_no_lock(story: Story, offset: int) -> None:
    story.send("a")
    story.receive("a")
    story.set_clock(offset)
    story.settle(story.receive("a", count=1))
    assert story.broken == ["message locks"]


@pytest.mark.parametrize("offset", [30_000, -30_000, 3 * 24 * 3600 * 1000])
def test_a_lock_ends_in_its_time_wherever_the_clock_is_set(story: Story, offset: int) -> None:
    story.send("a")
    story.receive("a")
    story.set_clock(offset)
    story.wait(LOCK_MS)
    story.settle(story.receive("a", count=1))
    assert story.broken == []


@pytest.mark.parametrize("offset", [30_000, -30_000])
def test_a_lock_is_valid_for_its_time_wherever_the_clock_is_set(story: Story, offset: int) -> None:
    story.send("a")
    first = story.receive("a")
    story.set_clock(offset)
    story.settle(first)
    assert story.broken == []


@pytest.mark.parametrize("offset", [30_000, -30_000])
def test_a_clock_that_jumps_excuses_no_late_settlement(story: Story, offset: int) -> None:
    story.send("a")
    first = story.receive("a")
    story.set_clock(offset)
    story.wait(LOCK_MS)
    story.settle(first)
    assert story.broken == ["message locks"]


def test_locks_end_when_a_run_advances_the_monotonic_clock(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.set_clock(0, passed=LOCK_MS)
    story.settle(story.receive("a", count=1))
    assert story.broken == []


def test_a_settlement_that_the_store_refused_leaves_the_lock(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), outcome=NO, error="amqp:internal-error")
    story.settle(story.receive("a", count=1))
    assert story.broken == ["message locks"]


def test_a_receiver_that_lost_its_lock_cannot_complete(story: Story) -> None:
    story.send("a")
    taken = story.receive("a")
    story.wait(LOCK_MS + SLACK_MS)
    story.settle(taken)
    assert story.broken == ["message locks"]


def test_a_settlement_without_a_lock_may_be_refused(story: Story) -> None:
    story.send("a")
    taken = story.receive("a")
    story.wait(LOCK_MS + 1)
    story.settle(taken, outcome=NO, error="com.microsoft:message-lock-lost")
    story.settle(story.receive("a", count=1))
    assert story.broken == []


def test_messages_of_a_session_are_locked_as_long_as_it_is(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s")
    hold = story.accept()
    taken = story.receive_of(hold, "a", 1)
    story.wait(LOCK_MS - 500)
    story.call(hold, "renew")
    story.wait(1000)
    story.settle(taken)
    assert story.broken == []


def test_a_prefetched_message_may_be_recorded_after_its_next_delivery(story: Story) -> None:
    story.send("a")
    attached = story.now
    buffered_until = int(story.now) + LOCK_MS
    story.wait(LOCK_MS + 1000)
    taken = story.receive("a", count=1)
    story.receive("a", start=attached, end=story.now + 10, until=buffered_until)
    story.wait(20)
    story.settle(taken)
    assert story.broken == []


def test_a_lock_whose_renewal_is_in_doubt_may_last_longer(story: Story) -> None:
    story.send("a")
    taken = story.receive("a")
    story.renew(taken, UNKNOWN)
    story.wait(LOCK_MS + 1)
    story.settle(taken)
    assert story.broken == []


def test_an_abandoned_message_is_counted(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.ABANDON)
    story.finish("a", count=0)
    assert story.broken == ["counts"]


def test_a_message_whose_return_is_in_doubt_need_not_be_counted(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.ABANDON, UNKNOWN)
    story.finish("a", count=0)
    assert story.broken == []


def test_an_abandoned_message_of_a_session_is_counted(story: Story) -> None:
    story.send("a", entity=SESSIONS, session="s")
    hold = story.accept()
    story.settle(story.receive_of(hold, "a", 1), Disposition.ABANDON)
    story.settle(story.receive_of(hold, "a", 1, count=0))
    assert story.broken == ["counts"]


def test_a_message_with_an_expired_lock_is_counted(story: Story) -> None:
    story.send("a")
    story.receive("a")
    story.finish("a", count=0)
    assert story.broken == ["counts"]


def test_a_count_that_was_stored_survives_a_restart(story: Story) -> None:
    story.send("a")
    story.settle(story.receive("a"), Disposition.ABANDON)
    story.receive("a", count=1)
    story.restart()
    story.finish("a", count=0)
    assert story.broken == ["counts"]


# --- transactions and what is sent as one ---


def test_a_committed_transaction_is_complete(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", "y")
    story.finish("x", "y", entity=INVOICES)
    assert story.broken == []


@pytest.mark.parametrize("outcome", [Outcome.OK, UNKNOWN])
def test_a_part_of_a_transaction_is_a_violation(story: Story, outcome: Outcome) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", "y", outcome=outcome)
    story.finish("x", entity=INVOICES)
    assert story.broken == ["lost", "transactions"]


def test_a_transaction_that_was_committed_has_taken_its_order(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x")
    story.finish("x", entity=INVOICES)
    story.finish("order", entity=ORDERS, count=1)
    assert story.broken == ["returned"]


def test_an_order_comes_again_at_once_when_its_transaction_is_rolled_back(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", commit=False)
    story.settle(story.receive("order", entity=ORDERS, count=1))
    assert story.broken == []


def test_a_transaction_in_doubt_that_sends_nothing_may_have_taken_its_order_or_not(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade(outcome=UNKNOWN)
    assert story.broken == []
    story.finish("order", entity=ORDERS, count=1)
    assert story.broken == []


@pytest.mark.parametrize(("commit", "outcome"), [(False, Outcome.OK), (True, NO), (True, None)])
def test_a_transaction_that_was_not_committed_has_left_its_order(
    story: Story, commit: bool, outcome: Outcome | None
) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", commit=commit, outcome=outcome)
    assert story.broken == ["lost"]


def test_a_transaction_in_doubt_whose_messages_came_has_taken_its_order(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", outcome=UNKNOWN)
    story.finish("x", entity=INVOICES)
    assert story.broken == []
    story.finish("order", entity=ORDERS, count=1)
    assert story.broken == ["returned"]


def test_a_transaction_in_doubt_whose_messages_did_not_come_has_left_its_order(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", outcome=UNKNOWN)
    assert story.broken == ["lost"]
    story.finish("order", entity=ORDERS, count=1)
    assert story.broken == []


@pytest.mark.parametrize(("commit", "outcome"), [(False, Outcome.OK), (False, UNKNOWN), (True, NO), (True, None)])
def test_nothing_of_a_transaction_comes_that_was_not_committed(
    story: Story, commit: bool, outcome: Outcome | None
) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", commit=commit, outcome=outcome)
    story.finish("order", entity=ORDERS, count=1)
    assert story.broken == []
    story.finish("x", entity=INVOICES)
    assert story.broken == ["unwanted"]


def test_a_batch_in_doubt_comes_whole_or_not_at_all(story: Story) -> None:
    story.send("a", "b", outcome=UNKNOWN)
    assert story.broken == []
    story.finish("a")
    assert story.broken == ["together"]
    story.finish("b", first=2, entity=dead_letters(PLAIN))
    assert story.broken == []


def test_a_part_of_a_batch_may_be_lost_in_flight_to_a_receive_and_delete_link(story: Story) -> None:
    story.send("a", "b", entity=DELETED)
    story.receive("a", entity=DELETED, way=Way.DELETE)
    story.lose(DELETED, 1)
    assert story.broken == []


def test_a_message_to_a_topic_comes_to_all_subscriptions_or_to_none(story: Story) -> None:
    story.send("a", entity=TOPIC, outcome=UNKNOWN)
    story.finish("a", entity=SUBSCRIPTIONS[0])
    assert story.broken == ["together"]
    story.finish("a", entity=SUBSCRIPTIONS[1])
    assert story.broken == []


# --- time ---


def test_a_scheduled_message_does_not_come_early(story: Story) -> None:
    due = int(story.now) + 5000
    story.send("a", entity=SCHEDULED, due=due)
    story.settle(story.receive("a", entity=SCHEDULED, enqueued=due))
    assert story.broken == ["schedules"]


def test_a_clock_that_jumps_makes_a_message_due(story: Story) -> None:
    due = int(story.now) + 5000
    story.send("a", entity=SCHEDULED, due=due)
    story.set_clock(5000)
    story.set_clock(0)
    story.settle(story.receive("a", entity=SCHEDULED, enqueued=due))
    assert story.broken == []


def test_a_scheduled_message_arrives_at_its_time(story: Story) -> None:
    due = int(story.now) + 5000
    story.send("a", entity=SCHEDULED, due=due)
    story.finish("a", entity=SCHEDULED, enqueued=due - 1)
    assert story.broken == ["schedules"]


def test_a_cancelled_message_is_not_delivered(story: Story) -> None:
    due = int(story.now) + 5000
    story.cancel(story.send("a", entity=SCHEDULED, due=due, numbers=(1,)))
    assert story.broken == []
    story.finish("a", entity=SCHEDULED, first=2, enqueued=due)
    assert story.broken == ["schedules"]


def test_messages_whose_cancellation_is_in_doubt_may_be_delivered_or_not(story: Story) -> None:
    due = int(story.now) + 5000
    story.cancel(story.send("a", "b", entity=SCHEDULED, due=due, numbers=(1, 2)), UNKNOWN)
    assert story.broken == []
    story.finish("a", entity=SCHEDULED, enqueued=due)
    assert story.broken == []


def test_messages_whose_cancellation_was_refused_must_be_delivered(story: Story) -> None:
    send = story.send("a", entity=SCHEDULED, due=int(story.now) + 5000, numbers=(1,))
    story.cancel(send, NO)
    assert story.broken == ["lost"]


def test_a_repetition_is_stored_once(story: Story) -> None:
    enqueued = [int(story.send(id, entity=UNIQUE, key="k").start) for id in "ab"]
    story.finish("a", entity=UNIQUE, enqueued=enqueued[0])
    assert story.broken == []
    story.finish("b", entity=UNIQUE, first=2, enqueued=enqueued[1])
    assert story.broken == ["duplicates"]


def test_a_repetition_that_was_not_acknowledged_is_not_stored_either(story: Story) -> None:
    sends = [story.send("a", entity=UNIQUE, key="k"), story.send("b", entity=UNIQUE, key="k", outcome=UNKNOWN)]
    for number, send in enumerate(sends, 1):
        story.settle(story.receive(*send.ids, number, entity=UNIQUE, enqueued=int(send.start)))
    assert story.broken == ["duplicates"]


def test_a_repetition_in_doubt_may_be_stored_after_the_window(story: Story) -> None:
    first = int(story.send("a", entity=UNIQUE, key="k").start)
    story.send("b", entity=UNIQUE, key="k", outcome=UNKNOWN)
    story.finish("a", entity=UNIQUE, enqueued=first)
    story.finish("b", entity=UNIQUE, first=2, enqueued=first + WINDOW_MS)
    assert story.broken == []


def test_an_id_is_free_again_after_the_window(story: Story) -> None:
    first = int(story.send("a", entity=UNIQUE, key="k").start)
    story.wait(WINDOW_MS)
    second = int(story.send("b", entity=UNIQUE, key="k").start)
    story.finish("a", entity=UNIQUE, enqueued=first)
    story.finish("b", entity=UNIQUE, first=2, enqueued=second)
    assert story.broken == []


@pytest.mark.parametrize("restarted", [False, True])
def test_an_id_is_free_again_after_the_clock_was_beyond_the_window_at_a_restart(story: Story, restarted: bool) -> None:
    first = int(story.send("a", entity=UNIQUE, key="k").start)
    story.set_clock(WINDOW_MS)
    if restarted:
        story.restart()
    story.set_clock(0)
    second = int(story.send("b", entity=UNIQUE, key="k").start)
    story.finish("a", entity=UNIQUE, enqueued=first)
    story.finish("b", entity=UNIQUE, first=2, enqueued=second)
    assert story.broken == ([] if restarted else ["duplicates"])


def test_a_repetition_is_dropped_within_the_window_wherever_the_clock_is_set(story: Story) -> None:
    first = int(story.send("a", entity=UNIQUE, key="k").start)
    story.set_clock(3 * WINDOW_MS)
    story.send("b", entity=UNIQUE, key="k")
    story.finish("a", entity=UNIQUE, enqueued=first)
    assert story.broken == []


def test_a_repetition_is_not_dropped_without_a_stored_original(story: Story) -> None:
    story.send("a", entity=UNIQUE, key="k", outcome=NO)
    story.send("b", entity=UNIQUE, key="k")
    assert story.broken == ["duplicates"]


def test_a_repetition_is_not_dropped_after_the_window(story: Story) -> None:
    first = int(story.send("a", entity=UNIQUE, key="k").start)
    story.wait(2 * WINDOW_MS)
    story.send("b", entity=UNIQUE, key="k")
    story.finish("a", entity=UNIQUE, enqueued=first)
    assert story.broken == ["duplicates"]


# --- claims ---


def test_a_claim_that_is_read_and_removed_is_as_it_was(story: Story) -> None:
    story.send("a", entity=CLAIMED)
    claim = story.claim(1, 1)
    story.list_claims(c=[1, 1])
    taken = story.receive("a", entity=CLAIMED, way=Way.CLAIM, until=None)
    story.read_claim(claim, 1)
    story.end_claim(claim)
    story.settle(taken)
    story.list_claims()
    assert story.broken == []


def test_a_removed_message_of_a_claim_does_not_come_again(story: Story) -> None:
    story.send("a", entity=CLAIMED)
    claim = story.claim(1, 1)
    taken = story.receive("a", entity=CLAIMED, way=Way.CLAIM, until=None)
    story.end_claim(claim)
    story.settle(taken)
    story.receive("a", entity=CLAIMED)
    assert story.broken == ["returned"]


def test_a_released_message_comes_again_and_is_lost_if_it_does_not(story: Story) -> None:
    story.send("a", entity=CLAIMED)
    claim = story.claim(1, 1)
    taken = story.receive("a", entity=CLAIMED, way=Way.CLAIM, until=None)
    story.end_claim(claim, releases=True)
    story.settle(taken, Disposition.RELEASE)
    assert story.broken == ["lost"]
    story.finish("a", entity=CLAIMED)
    assert story.broken == []


@pytest.mark.parametrize("answer", [(1, 2), (1, 4)])
def test_a_repeated_request_for_a_claim_has_the_same_answer(story: Story, answer: tuple[int, int]) -> None:
    story.claim(1, 3)
    story.claim(1, 3, outcome=UNKNOWN)
    story.claim(1, 3)
    assert story.broken == []
    story.claim(*answer)
    assert "claims" in story.broken


def test_claimed_messages_are_delivered_to_no_other_client(story: Story) -> None:
    story.send("a", entity=CLAIMED)
    claim = story.claim(1, 1)
    taken = story.receive("a", entity=CLAIMED)
    assert "claims" in story.broken
    story.records.remove(taken)
    story.end_claim(claim, releases=True, outcome=UNKNOWN)
    story.finish("a", entity=CLAIMED)
    assert story.broken == []


def test_a_message_is_in_one_claim(story: Story) -> None:
    claim = story.claim(1, 3)
    story.claim(3, 5, id="d")
    assert story.broken == ["claims"]
    story.records.pop()
    story.end_claim(claim, 3, 3, releases=True)
    story.claim(3, 5, id="d")
    assert story.broken == []


@pytest.mark.parametrize("listed", [{}, {"c": [1, 2]}, {"c": [1, 4]}])
def test_a_claim_is_listed_as_it_was_made(story: Story, listed: dict[str, list[int]]) -> None:
    story.claim(1, 3)
    story.list_claims(c=[1, 3])
    story.restart()
    story.list_claims(**listed)
    assert story.broken == ["claims"]


def test_a_claim_is_listed_with_its_remaining_messages(story: Story) -> None:
    claim = story.claim(1, 3, 7, 9)
    story.end_claim(claim, 2, 7)
    story.list_claims(c=[1, 1, 8, 9])
    assert story.broken == []
    story.list_claims(c=[1, 3, 7, 9])
    assert story.broken == ["claims"]


def test_a_claim_that_was_ended_is_not_listed(story: Story) -> None:
    claim = story.claim(1, 3)
    story.end_claim(claim)
    story.list_claims(c=[1, 3])
    assert story.broken == ["claims"]


def test_a_claim_whose_end_was_not_answered_may_be_listed_or_not(story: Story) -> None:
    claim = story.claim(1, 3)
    story.end_claim(claim, outcome=UNKNOWN)
    story.list_claims(c=[1, 3])
    story.list_claims()
    story.end_claim(claim, was_there=False)
    assert story.broken == []


def test_all_of_a_claim_except_damaged_messages_can_be_read(story: Story) -> None:
    story.send("a", "b", entity=CLAIMED)
    claim = story.claim(1, 2)
    story.read_claim(claim, 1)
    story.finish("a", entity=CLAIMED, way=Way.CLAIM, until=None)
    assert set(story.broken) == {"lost", "together", "claims"}
    story.damage_files()
    story.report("b", 2, entity=CLAIMED)
    assert story.broken == []


def test_a_claim_that_was_not_ended_exists(story: Story) -> None:
    claim = story.claim(1, 2)
    story.end_claim(claim, was_there=False)
    assert story.broken == ["claims"]


# --- the rest ---


def test_a_message_that_is_never_delivered_is_stuck(story: Story) -> None:
    story.send("a", outcome=UNKNOWN)
    story.records.append(Leftover(entity=PLAIN, id="a", number=1, state=0, start=story.now, end=story.now))
    assert story.broken == ["stuck"]


def test_a_broker_that_ends_by_itself_is_a_violation(story: Story) -> None:
    story.records.append(BrokerFailure(text="it ended", start=story.now, end=story.now))
    assert story.broken == ["broker"]


def test_the_page_has_every_promise_that_is_checked() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text()
    (_, table) = page.split("| Promise | |\n|---|---|\n")
    documented = re.findall(r"^\| ([a-z ]+) \|", table.partition("\n\n")[0], re.MULTILINE)
    sources = "".join(path.read_text() for path in (ROOT / "tools" / "chaos").glob("*_checks.py"))
    assert sorted(documented) == sorted(set(re.findall(r'Violation\(\s*"([a-z ]+)"', sources)))


def test_a_history_is_the_same_when_it_is_read_from_its_file(story: Story) -> None:
    story.send("order", entity=ORDERS)
    story.trade("x", "y")
    story.set_clock(5)
    story.restart()
    claim = story.claim(1, 3)
    story.list_claims(c=[1, 3])
    story.list_claims()
    story.read_claim(claim, 1, 2, 3)
    story.end_claim(claim)
    lines = [dump(record) for record in story.records]
    assert list(load(lines)) == story.records
    assert check(load(lines)) == check(story.records)
