"""The table of ownership, walked in every state with every event."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planwarden.agent.ports.store import Lease
from planwarden.agent.runtime.ownership import (
    CERTAIN_S,
    RIGHTS,
    TRANSITIONS,
    IllegalOwnershipEvent,
    Ownership,
    OwnershipEvent,
    State,
)

STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[OwnershipEvent, ...] = get_args(OwnershipEvent)
LEASE = Lease("e", "p", 1)


def begin(start: str) -> Ownership:
    return Ownership(LEASE if start == "owned" else None, seems_foreign=start == "unproven")


def move(ownership: Ownership, event: OwnershipEvent) -> None:
    """Let the event happen as a run lets it happen: what the store says of the lease comes with the lease."""
    if event == "acquired":
        ownership.settle(LEASE, 7.0)
    elif event == "released":
        ownership.settle(None)
    else:
        ownership.apply(event)


walks = st.tuples(st.sampled_from(["unowned", "owned", "unproven"]), st.lists(st.sampled_from(EVENTS), max_size=12))


@given(walks)
def test_on_every_way_only_what_the_store_confirmed_is_owned_and_an_illegal_event_changes_nothing(
    walk: tuple[str, list[OwnershipEvent]],
) -> None:
    ownership = begin(walk[0])
    for event in walk[1]:
        before, lease = ownership.state, ownership.lease
        if event not in TRANSITIONS[before]:
            with pytest.raises(IllegalOwnershipEvent, match=f"{event} cannot happen to an execution that is {before}"):
                move(ownership, event)
            assert (ownership.state, ownership.lease) == (before, lease)
            continue
        move(ownership, event)
        assert ownership.state == TRANSITIONS[before][event]
        if ownership.state == "owned":
            assert ownership.lease is not None and (before == "owned" or event == "acquired")
        assert ownership.lease is None or ownership.state in ("owned", "in_doubt")
        assert ownership.lease is not None or not ownership.is_certain(7.0)
        assert ownership.is_elsewhere == (ownership.state in ("foreign", "unproven", "lost"))


def test_every_state_has_its_row_and_its_rights_and_can_be_reached_and_left() -> None:
    assert {*TRANSITIONS} == {*RIGHTS} == {*STATES}
    reached, left = {"unowned", "owned", "unproven"}, {"unowned", "owned", "unproven"}
    while left:
        left = {
            following for state, row in TRANSITIONS.items() if state in left for following in row.values()
        } - reached
        reached |= left
    assert reached == {*STATES}
    assert all({*row.values()} - {state} for state, row in TRANSITIONS.items())


@pytest.mark.parametrize("state", STATES)
def test_nothing_but_commands_is_appended_and_no_job_starts_where_another_process_may_own_the_execution(
    state: State,
) -> None:
    rights, row = RIGHTS[state], TRANSITIONS[state]
    assert rights.starts_jobs == (rights.appends == "everything") == (state in ("unowned", "owned"))
    # Without a lease, an append has to acquire one, or it is refused.
    assert rights.acquires == (state == "unowned")
    # Nothing is appended before it is settled what became of a commit, and the log is not read in another way.
    assert (rights.appends == "nothing") == (state == "in_doubt") == ("advanced" not in row)
    # What was lost comes back only by reading what its owner appended, once nothing of this process runs any more.
    assert "acquired" not in row or state not in ("lost", "foreign")
    assert row.get("advanced", state) == ("unowned" if state in ("foreign", "unproven") else state)
    assert rights.cancels_jobs == ("jobs_ended" in row and rights.appends == "commands")
    assert row.get("left") in ("lost", "foreign")


def test_a_lease_is_certain_for_a_moment_and_its_silent_predecessor_is_gone_once_another_process_went_on() -> None:
    ownership = Ownership(Lease("e", "p", 1, is_from_silent=True))
    assert not ownership.is_certain(0.0) and not ownership.is_predecessor_gone
    ownership.confirm(7.0)
    assert ownership.is_certain(7.0 + CERTAIN_S / 2) and not ownership.is_certain(7.0 + CERTAIN_S)
    ownership.apply("left")
    ownership.apply("jobs_ended")
    assert not ownership.is_certain(7.0) and not ownership.is_predecessor_gone
    ownership.apply("advanced")
    assert ownership.is_predecessor_gone
