"""What the model edits and rejects: the model's in every channel, never a person's, never against a person's vote."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import planwarden
from tests.kit import (
    Authority,
    Browser,
    Client,
    Ledger,
    OperatorPolicy,
    Settings,
    ok,
    open_desk,
    open_inbox,
    plan,
    refused,
    requirement,
    served,
    tool_step,
)
from tests.server.mcp.support import ERAS, Era, approving, ids_of, nobody, question_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

SEND = plan(tool_step("a", "send", {"to": "ann"}))


def _wipe(ledger: Ledger) -> object:
    @planwarden.tool(risk="critical")
    async def wipe(what: str = "all") -> str:
        """Delete everything."""
        ledger.lines.append(f"wipe {what}")
        return "gone"

    return wipe


@asynccontextmanager
async def _logged_in(warden: planwarden.Warden, *names: str) -> AsyncGenerator[list[Browser]]:
    found = open_inbox(warden)
    browsers = [found.browser() for _ in names]
    for browser, name in zip(browsers, names, strict=True):
        await browser.log_in(name)
    yield browsers


@requirement("approval:edit-labelled")
async def test_each_argument_names_its_last_editor_and_a_persons_edit_stays_a_persons(tmp_path: Path, era: Era) -> None:
    edit: dict[str, Any] = {"approved": True, "modifiedArgs": {"to": "bob", "copies": 3}}
    async with open_desk(tmp_path, era, asks=approving(arg_to="cy")) as desk:
        asked = await desk.ok("execute_plan", plan=SEND)
        await desk.ok("resume_execution", **ids_of(asked), decision=edit)
        execution = await desk.warden.service.engine.find(asked["executionId"])
        [suspension] = execution.suspensions.values()
    assert desk.ledger.lines == ["send cy 3 False"]
    edits = [(edit.revision, edit.assurance, edit.arguments) for edit in suspension.question.edits]
    assert edits == [(2, "claimed", ("copies",)), (3, "client", ("to",))]


async def test_a_decision_that_names_a_digest_is_only_about_the_question_that_was_shown(
    tmp_path: Path, era: Era
) -> None:
    person = approving()
    async with open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok("execute_plan", plan=SEND)
        decision = {"decision": {"approved": True}}
        error = await desk.refused("resume_execution", **ids_of(asked), **decision, digest="0" * 64)
        assert error["code"] == "stale_revision" and person.shown == [] and desk.ledger.lines == []
        await desk.ok("resume_execution", **ids_of(asked), **decision, digest=question_of(asked)["digest"])
    assert desk.ledger.lines == ["send ann 1 False"]


@requirement("approval:vote-stands")
async def test_a_claimed_edit_never_voids_a_persons_vote(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    settings = Settings(home=tmp_path, policy=OperatorPolicy(quorum=2))
    edit: dict[str, Any] = {"approved": True, "modifiedArgs": {"what": "nothing"}}
    async with (
        served(tmp_path, tools=[_wipe(ledger)], settings=settings) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
        _logged_in(found.warden, "ann", "bob") as [ann, bob],
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("s", "wipe")))
        suspension_id = question_of(asked)["suspensionId"]
        assert (await ann.decide(suspension_id, "approve")).status == 303
        error = await refused(client, "resume_execution", **ids_of(asked), decision=edit)
        assert error["code"] == "edit_refused"
        assert error["message"] == (
            f"suspension {suspension_id!r} keeps its arguments: 'ann' approved them, and an edit of assurance "
            "'claimed' cannot void that; a person can edit them in the inbox or at a terminal, or reject the question"
        )
        [still] = (await found.warden.get_execution(asked["threadId"])).suspensions
        assert still.revision == 1 and [vote.principal for vote in still.endorsements] == ["ann"]
        assert (await bob.decide(suspension_id, "approve")).status == 303
    assert ledger.lines == ["wipe all"]


@requirement("approval:vote-stands")
async def test_a_form_of_the_client_and_a_trusted_caller_void_no_vote_either(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    settings = Settings(home=tmp_path, policy=OperatorPolicy(quorum=2, trust_caller=True))
    edit = planwarden.Decision(approved=True, modified_args={"what": "nothing"})
    async with (
        served(tmp_path, tools=[_wipe(ledger)], settings=settings) as found,
        Client(found.server, mode=era) as client,
        _logged_in(found.warden, "ann") as [ann],
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("s", "wipe")))
        place = (asked["threadId"], question_of(asked)["suspensionId"])
        assert (await ann.decide(place[1], "approve")).status == 303
        for assurance in ("claimed", "client"):
            authority = Authority(assurance=assurance, channel="test", principal="local")
            with pytest.raises(planwarden.PlanwardenError, match="cannot void that") as raised:
                await found.warden.service.answer(*place, edit, authority, principal="local")
            assert raised.value.code == "edit_refused"
        [still] = (await found.warden.get_execution(asked["threadId"])).suspensions
        assert [vote.principal for vote in still.endorsements] == ["ann"]
    assert ledger.lines == []
