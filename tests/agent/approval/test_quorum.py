"""Critical calls: a signature or somebody else, several people, and what changes under a pending question."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, StaleDefinition, StaleRevision
from planwarden.agent.core import events as ev
from planwarden.agent.core.requester import Requester
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.storage.memory.store import MemoryStore
from tests.kit import NO, YES, by, decide, governed
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

PLAN = plan(tool_step("a", "wipe", {"target": "old"}))


def wipe(ledger: Ledger, description: str = "Wipe it.") -> object:
    @planwarden.tool(name="wipe", risk="critical", description=description)
    async def tool(target: str) -> dict[str, JsonValue]:
        ledger.lines.append(f"wipe {target}")
        return {"wiped": target}

    return tool


@requirement("approval:starter")
@pytest.mark.parametrize(
    ("policy", "who", "assurance", "runs"),
    [
        ({}, "bob", "human", False),
        ({}, "bob", "signed", True),
        ({}, "carol", "human", True),
        ({"critical": "second"}, "bob", "signed", False),
        ({"critical": "second"}, "carol", "human", True),
        ({"same_person": frozenset({"local", "ann"})}, "ann", "human", False),
    ],
)
@pytest.mark.parametrize("is_retried", [False, True])
async def test_who_started_a_critical_call_is_no_second_person(
    tmp_path: Path, policy: dict[str, object], who: str, assurance: ev.Assurance, runs: bool, is_retried: bool
) -> None:
    ledger = Ledger()
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "clean.json").write_text(json.dumps(PLAN))
    given = Settings(home=tmp_path, policy=governed(**policy).policy)
    async with warden(tools=[wipe(ledger)], settings=given) as w:
        starter = ev.Starter(principal="bob", channel="inbox")
        asked = await w.service.run_plan("clean", requester=Requester("local", starter=starter))
        if is_retried:
            await w.cancel_execution(asked.thread_id)
            # Whoever calls without a person's session, such as the owner's model, leaves it the doing of who began it.
            asked = await w.service.retry(asked.thread_id, requester=Requester("local"))
        [question] = asked.suspensions
        done = await decide(w, question, YES, by(who, assurance))
        assert (done.status == "completed", ledger.lines == ["wipe old"]) == (runs, runs)


@requirement("approval:critical")
@pytest.mark.parametrize(
    ("policy", "who", "assurance", "runs"),
    [
        ({}, "local", "human", False),
        ({}, "local", "signed", True),
        ({}, "bob", "human", True),
        ({}, "bob", "client", False),
        ({"critical": "second"}, "local", "signed", False),
        ({"critical": "second"}, "bob", "human", True),
        ({"approvers": ("carol",)}, "bob", "signed", False),
        ({"approvers": ("carol",)}, "carol", "human", True),
        ({"same_person": frozenset({"local", "ann"})}, "ann", "human", False),
        ({"same_person": frozenset({"local", "ann"})}, "ann", "signed", True),
        ({}, "local", "claimed", False),
        ({"trust_caller": True}, "local", "claimed", True),
    ],
)
async def test_who_may_approve_a_critical_call(
    policy: dict[str, object], who: str, assurance: ev.Assurance, runs: bool
) -> None:
    ledger = Ledger()
    async with warden(tools=[wipe(ledger)], settings=governed(**policy)) as w:
        asked = await w.execute_plan(PLAN)
        [question] = asked.suspensions
        done = await decide(w, question, YES, by(who, assurance))
    assert ledger.lines == (["wipe old"] if runs else [])
    assert done.status == ("completed" if runs else "suspended")
    assert done.awaiting == (None if runs else "human")


@requirement("approval:quorum")
async def test_edited_arguments_void_the_approvals_given_before_and_one_no_is_enough() -> None:
    ledger = Ledger()
    async with warden(tools=[wipe(ledger)], settings=governed(critical="second", quorum=2)) as w:
        asked = await w.execute_plan(PLAN)
        [question] = asked.suspensions
        place = (asked.thread_id, question.suspension_id)
        await w.service.answer(*place, YES, by("bob"), principal="local")
        edit = planwarden.Decision(approved=True, modified_args={"target": "older"})
        edited = await w.service.answer(*place, edit, by("carol"), principal="local")
        [now] = edited.suspensions
        assert [vote.principal for vote in now.endorsements] == ["carol"] and now.revision == 2
        with pytest.raises(StaleRevision):
            await w.service.answer(*place, YES, by("dan", digest=question.digest), principal="local")
        rejected = await w.service.answer(*place, NO, by("dan", digest=now.digest), principal="local")
    assert rejected.status == "rejected" and ledger.lines == []


@requirement("approval:stale")
async def test_a_question_asked_under_an_older_policy_is_judged_under_the_new_one() -> None:
    ledger, store = Ledger(), MemoryStore()
    async with warden(tools=[wipe(ledger)], store=store) as w:
        asked = await w.execute_plan(PLAN)
    place = (asked.thread_id, asked.suspensions[0].suspension_id)
    async with warden(tools=[wipe(ledger)], store=store, settings=governed(critical="second", quorum=2)) as w:
        with pytest.raises(StaleDefinition, match="policy changed"):
            await w.service.answer(*place, YES, by("bob"), principal="local")
        [now] = (await w.get_execution(asked.thread_id)).suspensions
        assert (now.needs, now.quorum, now.revision) == ("second", 2, 2)
        assert ledger.lines == []
        rejected = await w.service.answer(*place, NO, by("local"), principal="local")
    assert rejected.status == "rejected"


@requirement("approval:critical")
def test_the_operators_file_says_who_decides(tmp_path: Path) -> None:
    file = tmp_path / "planwarden.toml"
    file.write_text('[approvals]\ncritical = "second"\nquorum = 2\napprovers = ["bob", "carol"]\n')
    policy = load_settings(home=tmp_path, environment={}).policy
    assert (policy.critical, policy.quorum, policy.approvers) == ("second", 2, ("bob", "carol"))
    assert policy.policy_digest != OperatorPolicy().policy_digest
    file.write_text('[approvals]\nquorum = 3\napprovers = ["bob", "bob", "carol"]\n')
    with pytest.raises(InvalidArguments, match="quorum is 3, but approvers names 2"):
        load_settings(home=tmp_path, environment={})
