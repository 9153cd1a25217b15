"""When a node changes its role: every pair of role and input, and each rule by name. The tests move the clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from peeklock.server.replication.roles import (
    COUNTED_SECONDS,
    EXIT_FENCED,
    POLL_SECONDS,
    SESSIONS_GONE_SECONDS,
    TRANSITIONS,
    Action,
    Input,
    Role,
    Roles,
    UnexpectedInput,
)

TTL = 6.0


@dataclass(frozen=True)
class Seen:
    epoch: int = 3
    beat: int = 10
    owner: str | None = "other"
    has_sessions: bool = True


HELD = Seen()


def roles(role: Role = Role.STANDBY) -> Roles:
    return Roles("this", TTL, role)


def poll(node: Roles, lease: Seen, at: float, until: float) -> float | None:
    """Read the same lease again and again. Returns when the node takes over, or None."""
    while at <= until + 1e-9:
        if Action.TAKE in node.lease_seen(lease, at):
            return at
        at += POLL_SECONDS
    return None


EXPECTED = {
    Role.STANDBY: {
        Input.LEASE_HELD: Role.STANDBY,
        Input.LEASE_FREE: Role.TAKING_OVER,
        Input.POLL_FAILED: Role.STANDBY,
        Input.STOP: Role.EXITED,
    },
    Role.TAKING_OVER: {Input.TAKEN: Role.ACTIVE, Input.NOT_TAKEN: Role.STANDBY, Input.STOP: Role.EXITED},
    Role.ACTIVE: {
        Input.RENEWED: Role.ACTIVE,
        Input.RENEWAL_FAILED: Role.ACTIVE,
        Input.OVERDUE: Role.SUSPENDED,
        Input.LEASE_LOST: Role.EXITED,
        Input.STORE_FAILED: Role.EXITED,
        Input.STOP: Role.STOPPING,
    },
    Role.SUSPENDED: {
        Input.RENEWED: Role.ACTIVE,
        Input.RENEWAL_FAILED: Role.SUSPENDED,
        Input.OVERDUE: Role.SUSPENDED,
        Input.LEASE_LOST: Role.EXITED,
        Input.STORE_FAILED: Role.EXITED,
        Input.STOP: Role.STOPPING,
    },
    Role.STOPPING: {
        Input.RENEWED: Role.STOPPING,
        Input.RENEWAL_FAILED: Role.STOPPING,
        Input.OVERDUE: Role.STOPPING,
        Input.LEASE_LOST: Role.EXITED,
        Input.STORE_FAILED: Role.EXITED,
        Input.STOP: Role.STOPPING,
        Input.STOPPED: Role.EXITED,
    },
    Role.EXITED: dict.fromkeys(Input, Role.EXITED),
}


@pytest.mark.parametrize("what", Input)
@pytest.mark.parametrize("role", Role)
def test_every_input_in_every_role_leads_to_the_next_role_or_is_refused(role: Role, what: Input) -> None:
    node = roles(role)
    if what in EXPECTED[role]:
        node.handle(what)
        assert node.role is EXPECTED[role][what]
    else:
        with pytest.raises(UnexpectedInput):
            node.handle(what)
        assert node.role is role


def test_a_node_that_goes_on_always_has_something_to_wait_for() -> None:
    """After each answer of the database another request follows; otherwise the node would stand still."""
    answers = {Input.LEASE_HELD, Input.LEASE_FREE, Input.POLL_FAILED, Input.NOT_TAKEN, Input.TAKEN, Input.RENEWED}
    requests = {Action.POLL, Action.TAKE, Action.RENEW, Action.RENEW_SOON}
    for (role, what), (_, actions) in TRANSITIONS.items():
        if role is not Role.EXITED and what in answers | {Input.RENEWAL_FAILED}:
            assert len(requests & set(actions)) == 1, (role, what)


def test_the_exit_status_of_a_fenced_node_is_75() -> None:
    assert EXIT_FENCED == 75


# --- the standby ---


def test_a_standby_takes_over_at_once_if_the_lease_was_released() -> None:
    node = roles()
    assert node.lease_seen(HELD, 0) == (Action.POLL,)
    assert node.lease_seen(replace(HELD, owner=None, beat=11), 0.25) == (Action.TAKE,)
    assert node.role is Role.TAKING_OVER


def test_a_standby_takes_over_a_lease_that_nobody_has_held_yet() -> None:
    assert roles().lease_seen(Seen(0, 0, None, has_sessions=False), 0) == (Action.TAKE,)


def test_a_standby_takes_over_again_after_a_take_over_whose_outcome_is_unknown() -> None:
    node = roles()
    node.lease_seen(replace(HELD, owner=None), 0)
    assert node.not_taken() == (Action.POLL,)
    assert node.lease_seen(Seen(4, 11, "this"), 1) == (Action.TAKE,)


def test_a_standby_takes_over_when_the_sessions_of_the_active_node_are_gone_for_1_5_seconds() -> None:
    node = roles()
    node.lease_seen(HELD, 0)
    gone = replace(HELD, has_sessions=False)
    assert poll(node, gone, 0.25, TTL) == 0.25 + SESSIONS_GONE_SECONDS


def test_sessions_that_return_in_time_keep_the_lease() -> None:
    node = roles()
    gone = replace(HELD, has_sessions=False)
    assert poll(node, gone, 0, 1.25) is None
    node.lease_seen(HELD, 1.5)
    assert poll(node, replace(gone, beat=11), 1.75, 3.0) is None


def test_a_standby_takes_over_after_a_full_lease_without_a_beat() -> None:
    node = roles()
    assert poll(node, HELD, 100.0, 200.0) == 100.0 + TTL


def test_every_beat_and_every_epoch_starts_the_time_again() -> None:
    node = roles()
    assert poll(node, HELD, 0, 5.75) is None
    assert poll(node, replace(HELD, beat=11), 6.0, 11.75) is None
    assert poll(node, replace(HELD, epoch=4, beat=11), 12.0, 20.0) == 18.0


def test_time_in_which_polls_fail_does_not_count() -> None:
    node = roles()
    assert poll(node, HELD, 0, 4.0) is None
    for _ in range(100):
        assert node.poll_failed() == (Action.POLL,)
    # 4 seconds were counted before the outage, and 2 are left.
    assert poll(node, HELD, 60.0, 70.0) == 62.0


def test_an_outage_of_the_database_gives_the_sessions_of_the_active_node_the_whole_time_to_return() -> None:
    node = roles()
    gone = replace(HELD, has_sessions=False)
    node.lease_seen(HELD, 0)
    assert poll(node, gone, 0.25, 1.5) is None
    node.poll_failed()
    assert poll(node, gone, 3.0, 10.0) == 3.0 + SESSIONS_GONE_SECONDS


def test_a_poll_that_hangs_counts_as_an_outage() -> None:
    """Also if the standby itself did not run: then it does not know whether the database answered."""
    node = roles()
    node.lease_seen(HELD, 0)
    assert node.lease_seen(HELD, 60.0) == (Action.POLL,)
    assert poll(node, HELD, 60.25, 80.0) == 60.0 + TTL - COUNTED_SECONDS


def test_a_take_over_that_another_standby_won_is_followed_by_a_poll() -> None:
    node = roles(Role.TAKING_OVER)
    assert node.not_taken() == (Action.POLL,)
    assert node.role is Role.STANDBY


# --- the active node ---


def active(at: float = 100.0) -> Roles:
    node = roles(Role.TAKING_OVER)
    assert node.taken(at) == (Action.RENEW_SOON, Action.START)
    return node


def test_an_active_node_renews_every_third_of_the_lease() -> None:
    node = active()
    assert node.renewal_seconds == TTL / 3
    assert node.renewed(102.0) == (Action.RENEW,)


def test_an_active_node_tries_again_soon_after_a_failed_renewal() -> None:
    assert active().handle(Input.RENEWAL_FAILED) == (Action.RENEW_SOON,)


def test_without_a_renewal_for_a_full_lease_the_node_suspends() -> None:
    node = active(100.0)
    assert node.tick(105.9) == ()
    assert node.tick(106.0) == (Action.SUSPEND,)
    assert node.role is Role.SUSPENDED
    assert node.tick(200.0) == ()


def test_the_lease_counts_from_the_beginning_of_a_renewal_not_from_its_answer() -> None:
    node = active(100.0)
    node.renewed(102.0)  # the answer came at 105
    assert node.tick(107.9) == ()
    assert node.tick(108.0) == (Action.SUSPEND,)


def test_the_take_over_is_the_first_renewal_also_if_it_took_long() -> None:
    node = active(100.0)
    assert node.tick(130.0) == (Action.SUSPEND,)


def test_a_suspended_node_resumes_if_the_epoch_is_still_its_own() -> None:
    node = active(100.0)
    node.tick(106.0)
    assert node.renewed(110.0) == (Action.RENEW, Action.RESUME)
    assert node.role is Role.ACTIVE
    assert node.tick(110.1) == ()


@pytest.mark.parametrize("role", [Role.ACTIVE, Role.SUSPENDED, Role.STOPPING])
@pytest.mark.parametrize("what", [Input.LEASE_LOST, Input.STORE_FAILED])
def test_a_node_whose_lease_or_store_is_lost_exits_at_once(role: Role, what: Input) -> None:
    node = roles(role)
    assert node.handle(what) == (Action.EXIT_FENCED,)
    assert node.role is Role.EXITED


def test_a_stopping_node_keeps_the_lease_until_the_broker_has_stopped() -> None:
    node = active()
    assert node.handle(Input.STOP) == (Action.STOP,)
    assert node.renewed(102.0) == (Action.RENEW,)
    assert node.handle(Input.STOPPED) == (Action.EXIT,)


def test_a_standby_that_is_stopped_exits_at_once() -> None:
    assert roles().handle(Input.STOP) == (Action.EXIT,)
    assert roles(Role.TAKING_OVER).handle(Input.STOP) == (Action.EXIT,)


def test_the_time_of_the_lease_does_not_matter_to_a_standby() -> None:
    assert roles().tick(1e9) == ()
