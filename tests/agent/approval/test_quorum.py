"""Critical calls: a signature or somebody else, several people, and what changes under a pending question."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import StaleRevision
from planwarden.agent.core import events as ev
from planwarden.agent.core.requester import Requester
from planwarden.server.settings.configuration import load_settings
from tests.kit import NO, YES, Ledger, OperatorPolicy, by, decide, governed, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

PLAN = plan(tool_step("a", "wipe", {"target": "old"}))


def wipe(ledger: Ledger, description: str = "Wipe it.") -> object:
    @planwarden.tool(name="wipe", risk="critical", description=description)
    async def tool(target: str) -> dict[str, JsonValue]:
        ledger.lines.append(f"wipe {target}")
        return {"wiped": target}

    return tool


TWINS: dict[str, object] = {"same_person": frozenset({"local", "ann"})}
SECOND: dict[str, object] = {"critical": "second"}
APPROVERS: dict[str, object] = {"approvers": ("carol",)}


@requirement("approval:critical", "approval:starter")
@pytest.mark.parametrize(
    ("starter", "policy", "who", "assurance", "runs"),
    [
        ("bob", {}, "bob", "human", False),
        ("bob", {}, "bob", "signed", True),
        ("bob", {}, "carol", "human", True),
        ("bob", SECOND, "bob", "signed", False),
        ("bob", SECOND, "carol", "human", True),
        ("bob", TWINS, "ann", "human", False),
        (None, {}, "local", "human", False),
        (None, {}, "local", "signed", True),
        (None, {}, "bob", "human", True),
        (None, {}, "bob", "client", False),
        (None, SECOND, "local", "signed", False),
        (None, SECOND, "bob", "human", True),
        (None, APPROVERS, "bob", "signed", False),
        (None, APPROVERS, "carol", "human", True),
        (None, TWINS, "ann", "human", False),
        (None, TWINS, "ann", "signed", True),
        (None, {}, "local", "claimed", False),
        (None, {"trust_caller": True}, "local", "claimed", True),
    ],
)
@pytest.mark.parametrize("is_retried", [False, True])
async def test_who_may_approve_a_critical_call_that_somebody_started_for_its_owner(
    tmp_path: Path,
    starter: str | None,
    policy: dict[str, object],
    who: str,
    assurance: ev.Assurance,
    runs: bool,
    is_retried: bool,
) -> None:
    ledger = Ledger()
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "clean.json").write_text(json.dumps(PLAN))
    async with warden(tools=[wipe(ledger)], settings=governed(tmp_path, **policy)) as w:
        began = None if starter is None else ev.Starter(principal=starter, channel="inbox")
        asked = await w.service.run_plan("clean", requester=Requester("local", starter=began))
        if is_retried:
            await w.cancel_execution(asked.thread_id)
            # A caller without a person's session, such as the owner's model, does not become the one who began it.
            asked = await w.service.retry(asked.thread_id, requester=Requester("local"))
        done = await decide(w, asked, YES, by(who, assurance))
    assert ledger.lines == (["wipe old"] if runs else [])
    assert (done.status, done.awaiting) == (("completed", None) if runs else ("suspended", "human"))


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


@requirement("approval:critical")
def test_the_operators_file_says_who_decides(tmp_path: Path) -> None:
    file = tmp_path / "planwarden.toml"
    file.write_text('[approvals]\ncritical = "second"\nquorum = 2\napprovers = ["bob", "carol"]\n')
    policy = load_settings(home=tmp_path, environment={}).policy
    assert (policy.critical, policy.quorum, policy.approvers) == ("second", 2, ("bob", "carol"))
    assert policy.policy_digest != OperatorPolicy().policy_digest
