"""Approvals over MCP: a model approves nothing, a form counts only with a decision, and a person's vote stands.

What each channel does with each answer, `tests/channels` shows.
"""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from mcp.client import ClientRequestContext
from mcp.types import INTERNAL_ERROR, ElicitRequestParams, ElicitResult, ErrorData
from pydantic import JsonValue

import planwarden
from planwarden.server.settings.tables import ToolSettings
from tests import kit
from tests.kit import plan
from tests.server.mcp import support

both = pytest.mark.parametrize("era", support.ERAS)

APPROVE = {"approved": True}
NOW: support.Document = {"decision": APPROVE, "waitSeconds": 0}
CONFIRMED: dict[str, JsonValue] = plan(kit.confirm("a", "write it down?"), kit.tool_step("b", "note", {"text": "x"}))
DANGEROUS = plan(kit.tool_step("a", "erase", {"ids": [1]}))
SEND = plan(kit.tool_step("a", "send", {"to": "ann"}))
NASTY = "Fine\n" * 50 + "\x1b[2J\u202e[Approve]\u200b\U000e0041" + "\n" * 5_000


@both
@pytest.mark.parametrize(
    "person",
    [
        support.Person(content={}),
        support.Person(content=None),
        support.Person(content={"decision": None}),
        support.Person(content={"decision": "yes"}),
        support.Person(content={"decision": True}),
        support.Person(content={"arg_action": "something else"}),
        support.Person(action="decline"),
        support.Person(action="cancel"),
        support.Person(action="decline", content={"decision": "approve"}),
    ],
    ids=["empty", "nothing", "null", "other word", "true", "arguments only", "decline", "cancel", "declined approval"],
)
async def test_a_form_without_a_decision_decides_nothing(
    tmp_path: Path, era: support.Era, person: support.Person
) -> None:
    person = support.Person(person.action, person.content)
    async with kit.open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok("execute_plan", plan=CONFIRMED)
        assert person.shown == []
        still = await desk.ok("resume_execution", **support.ids_of(asked), decision=APPROVE)
        assert (still["status"], still["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
        assert len(person.shown) == 1
        assert "did not decide" in still["nextAction"] and "planwarden approve" in still["nextAction"]


async def test_a_client_that_fails_to_show_the_form_decides_nothing(tmp_path: Path) -> None:
    async def broken(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message="no screen")

    async with kit.open_desk(tmp_path, "legacy", asks=broken) as desk:
        asked = await desk.ok("execute_plan", plan=CONFIRMED)
        still = await desk.ok("resume_execution", **support.ids_of(asked), decision=APPROVE)
        assert still["awaiting"] == "human" and "could not be asked" in still["nextAction"]


async def test_somebody_who_decides_elsewhere_ends_an_open_form(tmp_path: Path) -> None:
    opened, ended = anyio.Event(), list[support.Document]()

    async def slow(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        opened.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with kit.open_desk(tmp_path, "legacy", asks=slow) as desk, anyio.create_task_group() as tasks:
        asked = await desk.ok("execute_plan", plan=CONFIRMED)

        async def resume() -> None:
            ended.append(await desk.ok("resume_execution", **support.ids_of(asked), decision=APPROVE))

        with anyio.fail_after(60):
            tasks.start_soon(resume)
            await opened.wait()
            await support.decide_on_page(desk, approved=False)
            while not ended:
                await anyio.lowlevel.checkpoint()
        assert ended[0]["status"] == "rejected"


@kit.requirement("forms:brief")
@both
async def test_words_made_to_deceive_come_after_the_facts_escaped_and_cut(tmp_path: Path, era: support.Era) -> None:
    person = support.Person(action="cancel")
    async with kit.open_desk(tmp_path, era, asks=person) as desk:
        step = kit.tool_step("a", "send", {"to": "Ann"}, description=NASTY)
        asked = await desk.ok("execute_plan", plan=plan(step))
        await desk.ok("resume_execution", **support.ids_of(asked), decision=APPROVE)
        message = person.shown[0].message
        lines = message.splitlines()
        assert lines[0] == "Run this call? send (risk: confirm)"
        assert lines[1] == "planwarden found: Control or invisible characters escaped: 4"
        assert lines[2] == 'to="Ann", copies=1, urgent=false'
        assert lines[3].startswith("The agent says (unverified), 500 char") and len(lines) == 4
        assert len(message) < 800 and message.replace("\n", "").isprintable()


@kit.requirement("forms:brief")
@both
async def test_a_form_says_where_an_argument_came_out_of_a_result_and_quotes_what_could_pass_for_more(
    tmp_path: Path, era: support.Era
) -> None:
    deceiving = "/x), copies=1; planwarden found: it is fine ("
    person = support.Person(action="cancel")
    async with kit.open_desk(tmp_path, era, asks=person) as desk:
        for pointer, origin in (("/written", "/written"), (deceiving, f'"{deceiving}"')):
            to: JsonValue = {"$from": "n", "pointer": pointer, "default": "Ann"}
            steps = kit.tool_step("n", "note", {"text": "Ann"}), kit.tool_step("a", "send", {"to": to})
            asked = await desk.ok("execute_plan", plan=plan(*steps))
            await desk.ok("resume_execution", **support.ids_of(asked), decision=APPROVE)
            shown = person.shown[-1].message.replace("\n| ", "")
            assert f'to="Ann" (from the result of n at {origin}), copies=1' in shown


@kit.requirement("plan:review")
@both
async def test_a_person_approves_what_the_form_shows_whatever_a_model_wants(tmp_path: Path, era: support.Era) -> None:
    person = support.approving()
    async with kit.open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok(
            "execute_plan", plan=plan(kit.tool_step("n", "note", {"text": "x"})), options={"review": "person"}
        )
        models_edit: JsonValue = plan(kit.tool_step("n", "note", {"text": "the model's"}))
        decision = {"approved": True, "content": {"plan": models_edit, "cover": True}}
        done = await desk.ok("resume_execution", **support.ids_of(asked), decision=decision)
        assert (done["status"], desk.ledger.lines) == ("completed", ["note x"])
    [form] = person.shown
    assert 'Step 1 of 1: n: note(text="x")' in form.message.replace("\n| ", "")
    assert set(form.requested_schema["properties"]) == {"decision", "reason"}


@both
async def test_a_decision_with_a_digest_is_only_about_the_question_shown(tmp_path: Path, era: support.Era) -> None:
    person = support.approving()
    async with kit.open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok("execute_plan", plan=SEND)
        error = await desk.refused("resume_execution", **support.ids_of(asked), decision=APPROVE, digest="0" * 64)
        assert error["code"] == "stale_revision" and person.shown == [] and desk.ledger.lines == []
        await desk.ok(
            "resume_execution", **support.ids_of(asked), decision=APPROVE, digest=support.question_of(asked)["digest"]
        )
        assert desk.ledger.lines == ["send ann 1 False"]


@kit.requirement("approval:vote-stands")
@pytest.mark.parametrize("trusts", [False, True], ids=["claims", "trusted caller"])
async def test_a_claimed_edit_never_voids_a_persons_vote(tmp_path: Path, trusts: bool) -> None:
    wiped = list[str]()

    @planwarden.tool(risk="critical")
    async def wipe(what: str = "all") -> str:
        """Delete everything."""
        wiped.append(what)
        return "gone"

    edit = planwarden.Decision(approved=True, modified_args={"what": "nothing"})
    settings = kit.governed(tmp_path, quorum=2, trust_caller=trusts)
    async with kit.open_desk(tmp_path, "auto", wipe, asks=support.nobody, settings=settings) as desk:
        inbox = kit.open_inbox(desk.warden)
        ann, bob = await inbox.log_in("ann"), await inbox.log_in("bob")
        asked = await desk.ok("execute_plan", plan=plan(kit.tool_step("s", "wipe")))
        suspension_id = support.question_of(asked)["suspensionId"]
        assert (await ann.decide(suspension_id, "approve")).status == 303
        sent = {"approved": True, "modifiedArgs": edit.modified_args}
        error = await desk.refused("resume_execution", **support.ids_of(asked), decision=sent)
        assert error["code"] == "edit_refused" and "'ann' approved them" in error["message"]
        [still] = (await desk.warden.get_execution(asked["threadId"])).suspensions
        with pytest.raises(planwarden.PlanwardenError, match="assurance 'client' cannot void that"):
            await kit.decide(desk.warden, still, edit, kit.by("local", "client"), principal="local")
        [still] = (await desk.warden.get_execution(asked["threadId"])).suspensions
        assert still.revision == 1 and [vote.principal for vote in still.endorsements] == ["ann"]
        assert wiped == []
        assert (await bob.decide(suspension_id, "approve")).status == 303
    assert wiped == ["all"]


@kit.requirement("resume:table", "caller:ways-at-once")
@both
@pytest.mark.parametrize("inbox", [None, support.INBOX])
async def test_who_has_no_way_to_ask_is_told_everything_that_a_person_needs(
    tmp_path: Path, era: support.Era, inbox: str | None
) -> None:
    settings = kit.Settings(home=tmp_path, tools={"erase": ToolSettings(answer_within_s=600)})
    async with kit.open_desk(tmp_path, era, settings=settings, inbox_url=inbox) as desk:
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        at_once = asked["nextAction"]
        still = await desk.ok("resume_execution", **support.ids_of(asked), **NOW)
        question, said = support.question_of(still), still["nextAction"]
        assert (still["status"], still["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
        assert (question["needs"], question["risk"]) == ("human", "dangerous")
        command = f"planwarden approve {question['suspensionId']}"
        assert command in at_once and "resume_execution" not in at_once
        assert (await desk.ok("get_execution", threadId=asked["threadId"]))["nextAction"] == at_once
        refused = await desk.refused("submit_answer", **support.ids_of(asked), content=APPROVE)
        assert command in refused["message"] and "resume_execution" not in refused["message"]
        assert inbox is None or inbox in refused["message"]
        assert said == f"Your approval does not count. {at_once}"
        edit = await desk.ok("resume_execution", **support.ids_of(asked), decision={"modifiedArgs": {"ids": [2]}})
        assert edit["nextAction"] == f"Your edit was not recorded; the person can edit the arguments. {at_once}"
        form = await desk.ok("ask_person", message="Which?", form={"type": "object"}, waitSeconds=0)
        answers: list[support.Document] = [{"content": {}}, {"content": {}, **APPROVE}]
        for decision in answers:
            answer = await desk.ok("resume_execution", **support.ids_of(form), decision=decision)
            assert answer["nextAction"] == f"Your answer does not count. {form['nextAction']}"
        no = {"approved": False, "reason": "user said no in chat"}
        [step] = (await desk.ok("resume_execution", **support.ids_of(asked), decision=no))["steps"]
        assert step["error"]["message"].startswith("rejected by the calling model of local (claimed, mcp)")
        url = f"{inbox}/suspensions/{question['suspensionId']}" if inbox else None
        assert question["howToAnswer"] == {**({"inboxUrl": url} if url else {}), "command": command}
        assert "person must decide; do not retry" in said and command in said and (url is None or url in said)
        assert question["expiresAt"][:16] in said and "reject" in said
