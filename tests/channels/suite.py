"""What a decision must do, as data: the question, what is said about it and when, and what must be observable then.

A row of `cannot` is a channel that cannot do it, with the reason and with what is observed there instead.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.core.execution.notifications import Schedule
from planwarden.agent.core.execution.synopsis import describe_fault
from planwarden.server.cli.terminal.lines import step_lines
from planwarden.server.mcp.results import build_view_result
from planwarden.server.mcp.text import format_execution
from tests.channels.channels import CHANNELS, SEND, Answer, Stage, Turn
from tests.kit import Json, confirm, ev, governed, plan, read_audit_page, tool_step
from tests.server.mcp.support import text_of


@dataclass(frozen=True)
class Cannot:
    """Why a channel cannot do it, and the effects that happen there instead."""

    why: str
    ledger: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    steps: tuple[Json, ...]
    turns: tuple[Turn, ...]
    options: Json = field(default_factory=dict[str, JsonValue])
    policy: Mapping[str, object] = field(default_factory=dict[str, object])
    principal: str = "local"
    assurance: str | None = None
    """What the deciding answer counts as, where that is not what the channel is worth."""
    check: Callable[[Stage], Awaitable[None]] | None = None
    """What must be observable beyond ledger, status, log and audit."""
    cannot: Mapping[str, Cannot] = field(default_factory=dict[str, Cannot])
    requirements: tuple[str, ...] = ()


FORMS = ("form", "form, pushed", "app", "task")
"""Channels whose answers a host could give by itself."""
CLAIM = Cannot("what a model sends is a claim, and a person is asked")
WORTH_CLIENT = Cannot("a host could answer by itself, and the call needs a person")
CLAIMED = Cannot("the word of the model that calls decides before anybody is asked", ("erase [1, 2]",))
NO_FIELD = Cannot("a form has no field for it, and the question is not put there or decided")
THREE_LINES = Cannot("the rows do not fit into the three lines that hosts show of a form")
NO_SIGHT = Cannot("a program reads values, nothing is drawn for it")


def _except(names: tuple[str, ...], cannot: Cannot) -> dict[str, Cannot]:
    return dict.fromkeys(names, cannot)


YES, NO, LATER = Answer(), Answer(approves=False, reason="not today"), Answer(approves=None)
ANN, BOB = "send ann 1 False", "send bob 3 True"
TOO_LATE = r"already_decided|timed[ _]out|in time|expired|passed"
SENT = (tool_step("a", "send", {"to": "ann"}),)
ERASED = (tool_step("a", "erase", {"ids": [1, 2]}),)
WIPED = (tool_step("a", "wipe"),)
PAID = (tool_step("a", "pay", {"amount": 7}),)
ROWS: tuple[Json, ...] = ({**tool_step("a", "send", {"to": {"$from": "item"}}), "forEach": ["ann", "eve", "cy"]},)
NOTED: Json = {**tool_step("n", "note", {"text": "x"}), "description": "write"}
SHORT = (NOTED,)
REVIEWED = (
    NOTED,
    {**tool_step("a", "send", {"to": "ann"}), "description": "send"},
)
FORM: Json = {
    "type": "object",
    "required": ["city", "nights"],
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"], "description": "Where\u202e to"},
        "nights": {"type": "integer", "minimum": 1},
    },
}
ASKED = (
    tool_step("ask", "requestInput", {"message": "Where to?", "form": FORM}),
    tool_step("n", "note", {"text": {"$from": "ask", "pointer": "/content/city"}}),
)
HIDDEN = "ann\x1b[2J\u202e\u200b"
FAKE = "Fine\n" * 30 + "</form><button>[Approve]</button>\x1b[2J\u202e Tool: nothing\nRisk: read" + "\n" * 200
LONG = "".join(f"{number:04}" for number in range(200))
UNSEEN = ("\x1b", "\u202e", "\u200b", "\x07")
"""Characters that must reach nobody's eyes as they are."""


async def model_edits(stage: Stage) -> None:
    """The calling model edits an argument, and the answer that it gets says whose edit that is."""
    await stage.edit_by_model(to="everybody")
    execution = await stage.look()
    [edit] = execution.suspensions[0].edits
    assert (edit.arguments, edit.assurance, edit.channel, edit.principal) == (("to",), "claimed", "mcp", "local")
    assert 'Edited: ["to"] by "local" (assurance claimed, mcp)' in text_of(
        build_view_result(execution, format_execution)
    )


async def tool_changes(stage: Stage) -> None:
    stage.become(replace(SEND, description="Send a letter, and publish it."))


async def policy_changes(stage: Stage) -> None:
    await stage.open(governed(stage.home, facts={"changed": True}))


async def time_passes(stage: Stage) -> None:
    stage.clock.advance(61)


async def time_runs_out(stage: Stage) -> None:
    stage.clock.advance(61)
    await stage.warden.service.tick()


async def is_cancelled(stage: Stage) -> None:
    assert stage.asked is not None
    await stage.warden.cancel_execution(stage.asked.thread_id)


async def reminder_is_sent_once(stage: Stage) -> None:
    stage.clock.advance(1_000)
    await stage.warden.service.tick()
    assert [event.number for event in await stage.events(ev.SuspensionReminded)] == [1]


async def time_out_is_observed(stage: Stage) -> None:
    assert "SUSPENSION_TIMEOUT" in [seen.type for seen in (await stage.look()).observations or ()]


async def votes_are_audited(stage: Stage) -> None:
    kinds = [row.kind for row in (await read_audit_page(stage.warden.service.store)).rows]
    assert [kind for kind in kinds if kind in ("asked", "endorsed", "decided")] == ["asked", "endorsed", "decided"]


async def edit_stays_the_models(stage: Stage) -> None:
    [suspension] = (await stage.find()).suspensions.values()
    assert [edit.assurance for edit in suspension.question.edits] == ["claimed"]
    revised = [seen.data for seen in (await stage.look()).observations or () if seen.data.get("revision") == 2]
    assert (["to"], "claimed") in [(data.get("edited"), data.get("assurance")) for data in revised]
    [facts] = [row.facts for row in (await read_audit_page(stage.warden.service.store)).rows if row.kind == "revised"]
    assert (facts["assurance"], facts["channel"], facts["principal"]) == ("claimed", "mcp", "local")


async def it_is_said_who_decided(stage: Stage) -> None:
    """Check pages, terminal and answers: who, through what, and nothing less than a person as a person."""
    execution = await stage.find()
    [suspension] = execution.suspensions.values()
    is_claim, view = suspension.assurance == "claimed", await stage.look()
    verb = "approved" if suspension.decision.approved else "rejected"
    who = "the calling model of local" if is_claim else suspension.principal
    browser = stage.inbox.browser()
    await browser.log_in()
    paths = (f"/inbox/suspensions/{suspension.question.suspension_id}", "/inbox/history")
    page, history = [" ".join((await browser.open(path)).words.split()) for path in paths]
    assert f"{verb} by {who}" in page and ("(a person" in page) == (suspension.assurance == "human")
    [line] = [line.text for line in step_lines(execution, execution.steps["a"]) if verb in line.text]
    assert f"{verb} by {who} ({suspension.assurance}, {suspension.channel})" in line
    if verb == "rejected":
        # A reason that a model claims is shown as its words, and never without saying so.
        result = build_view_result(view, format_execution)
        told = (page, history, line, text_of(result), str(result.structured_content))
        claim = re.compile(r'(the agent says|Your reason) \(unverified\): "not today"')
        bare = [claim.sub("", text) for text in (*told, describe_fault(execution))]
        assert [text for text in bare if is_claim and ("not today" in text or "a person rejected" in text)] == []
        assert all("not today" in text for text in told)
        assert ("no person did" in view.next_action) == is_claim
        rows = (await read_audit_page(stage.warden.service.store)).rows
        [facts] = [row.facts for row in rows if row.kind == "decided"]
        assert (facts.get("claim"), facts.get("reason")) == (("not today", None) if is_claim else (None, "not today"))


def edited_as(*arguments: str, revision: int = 2) -> Callable[[Stage], Awaitable[None]]:
    """Check that the last edit of the question is recorded with these arguments and its maker's worth."""

    async def check(stage: Stage) -> None:
        [suspension] = [found for found in (await stage.find()).suspensions.values() if found.question.edits]
        edit = suspension.question.edits[-1]
        assert (edit.arguments, edit.revision) == (arguments, revision)
        assert edit.assurance == suspension.assurance

    return check


def result_is(result: object) -> Callable[[Stage], Awaitable[None]]:
    async def check(stage: Stage) -> None:
        assert (await stage.look()).steps[0].result == result

    return check


async def later_steps_are_skipped(stage: Stage) -> None:
    found = await stage.look()
    assert [step.status for step in found.steps] == ["rejected", "skipped"]
    said = [seen.data.get("reason") for seen in found.observations or () if seen.type == "STEP_REJECTED"]
    # A reason that a model claims is nobody's word.
    [suspension] = (await stage.find()).suspensions.values()
    assert said == [None if suspension.assurance == "claimed" else "not today"]


async def plan_was_revised(stage: Stage) -> None:
    assert [step.id for step in (await stage.look()).steps] == ["m"]


DANGEROUS: Mapping[str, Cannot] = {**_except(FORMS, WORTH_CLIENT), "tool": CLAIM}
CRITICAL: Mapping[str, Cannot] = {
    **DANGEROUS,
    "python": Cannot("a program is the operator, whose word suffices alone", ("wipe all",)),
}
RECONCILED: Mapping[str, Cannot] = {
    **_except(FORMS, Cannot("the result may be any JSON, for which a form has no field", ("pay 7",))),
    "tool": Cannot(CLAIM.why, ("pay 7",)),
}
BY_NAME: Mapping[str, Cannot] = {**_except(FORMS, NO_FIELD), "tool": CLAIM}
NO_LOOK: Mapping[str, Cannot] = {
    "tool": CLAIM,
    "python": Cannot(
        "a program names no revision: it decides about the question as it is", ("send everybody 1 False",)
    ),
}
ANOTHER = r"already_decided|has been decided|approved by|rejected by|was (approved|rejected)"

CASES: tuple[Case, ...] = (
    Case(
        name="approve runs the call once, as it was shown",
        steps=SENT,
        turns=(Turn(answers=(YES,), ledger=(ANN,), status="completed", shows=(r"\bann\b",)),),
        check=it_is_said_who_decided,
        cannot={"tool": CLAIM},
        requirements=("inbox:decides-once", "resume:table", "tasks:input", "app:nonce"),
    ),
    Case(
        name="an argument that came out of a result is shown with it",
        steps=(NOTED, tool_step("a", "send", {"to": {"$from": "n", "pointer": "/written"}})),
        turns=(
            Turn(
                answers=(YES,),
                ledger=("note x", "send x 1 False"),
                status="completed",
                shows=(r"to\W+x\W+from the result of n at /written",),
            ),
        ),
        cannot={
            "tool": Cannot(CLAIM.why, ("note x",)),
            "python": Cannot(NO_SIGHT.why, ("note x", "send x 1 False")),
        },
        requirements=("inbox:facts-first", "forms:brief"),
    ),
    Case(
        name="approve releases a dangerous call",
        steps=ERASED,
        turns=(Turn(answers=(YES,), ledger=("erase [1, 2]",), status="completed"),),
        cannot=DANGEROUS,
        requirements=("app:assurance", "tasks:link", "resume:link", "resume:table"),
    ),
    Case(
        name="a caller that the operator trusts decides as itself",
        steps=ERASED,
        policy={"trust_caller": True},
        turns=(Turn(answers=(YES,), ledger=("erase [1, 2]",), status="completed"),),
        cannot={**_except(("app", "task"), WORTH_CLIENT), **_except(("form", "form, pushed", "link"), CLAIMED)},
        requirements=("resume:table",),
    ),
    Case(
        name="a confirmation covers the calls that it names",
        steps=(confirm("c", "write it down?", confirms=["a"]), tool_step("a", "send", {"to": "ann"})),
        turns=(Turn(answers=(YES,), ledger=(ANN,), status="completed", shows=("write it down", r"\bann\b")),),
        cannot={"tool": CLAIM},
    ),
    Case(
        name="a confirmation needs what the calls need that it covers",
        steps=(confirm("c", confirms=["a"]), tool_step("a", "erase", {"ids": [1, 2]})),
        turns=(Turn(answers=(YES,), ledger=("erase [1, 2]",), status="completed", shows=("go on",)),),
        cannot=DANGEROUS,
    ),
    Case(
        name="reject rejects the step and skips what depends on it",
        steps=(*SENT, tool_step("b", "note", {"text": "x"})),
        turns=(Turn(answers=(NO,), status="rejected"),),
        check=later_steps_are_skipped,
        requirements=("resume:table", "inbox:decides-once"),
    ),
    Case(
        name="anybody rejects a dangerous call",
        steps=ERASED,
        turns=(Turn(answers=(NO,), status="rejected"),),
        check=it_is_said_who_decided,
        cannot=_except(FORMS, Cannot("the question is not put there")),
        requirements=("resume:table", "approval:claimed-rejection"),
    ),
    Case(
        name="no decision leaves the question open",
        steps=SENT,
        turns=(Turn(answers=(LATER,)),),
        cannot={"python": Cannot("a program that says nothing calls nothing")},
        requirements=("resume:table", "tasks:replay", "resume:link"),
    ),
    Case(
        name="edited arguments are a revision, and run",
        steps=SENT,
        turns=(
            Turn(
                answers=(Answer(edits={"to": "bob", "copies": 3, "urgent": True}),), ledger=(BOB,), status="completed"
            ),
        ),
        check=edited_as("to", "copies", "urgent"),
        cannot={"tool": CLAIM},
        requirements=("inbox:edited-seen",),
    ),
    Case(
        name="an edit that fails the schema decides nothing",
        steps=SENT,
        turns=(
            Turn(answers=(Answer(edits={"copies": "three"}, stops=True),), said=r"copies|another look"),
            Turn(answers=(YES,), ledger=(ANN,), status="completed"),
        ),
        cannot={"tool": CLAIM},
        requirements=("inbox:edited-seen",),
    ),
    Case(
        name="a question that was revised since the look is looked at again",
        steps=SENT,
        turns=(
            Turn(answers=(YES,), meanwhile=model_edits, said=r"stale_revision|revised since|revision 2"),
            Turn(
                answers=(YES,),
                ledger=("send everybody 1 False",),
                status="completed",
                shows=("The calling model edited after it was asked: to", "everybody"),
            ),
        ),
        check=edit_stays_the_models,
        cannot=NO_LOOK,
        requirements=("inbox:stale", "tasks:replay", "approval:edit-labelled"),
    ),
    Case(
        name="a tool that changed since the question is asked about again",
        steps=SENT,
        turns=(
            Turn(answers=(YES,), meanwhile=tool_changes, said=r"changed after it was shown"),
            Turn(answers=(YES,), ledger=(ANN,), status="completed"),
        ),
        cannot={"tool": CLAIM},
        requirements=("approval:stale",),
    ),
    Case(
        name="a policy that changed since the question is applied first",
        steps=SENT,
        turns=(
            Turn(answers=(YES,), before=policy_changes, said=r"policy changed|policy"),
            Turn(answers=(YES,), ledger=(ANN,), status="completed"),
        ),
        cannot={"tool": CLAIM},
        requirements=("approval:stale",),
    ),
    Case(
        name="an answer after the deadline is too late",
        steps=(tool_step("a", "displayConfirmation", {"action": "go?", "timeoutSeconds": 60}),),
        turns=(Turn(answers=(YES,), meanwhile=time_passes, status="rejected", said=TOO_LATE),),
        cannot={"tool": CLAIM},
    ),
    Case(
        name="a question that timed out is rejected, and stays so",
        steps=(tool_step("a", "displayConfirmation", {"action": "go?", "timeoutSeconds": 60}),),
        turns=(Turn(answers=(YES,), meanwhile=time_runs_out, status="rejected", said=TOO_LATE),),
        check=time_out_is_observed,
    ),
    Case(
        name="a question of a cancelled execution is withdrawn",
        steps=SENT,
        turns=(
            Turn(
                answers=(YES,), meanwhile=is_cancelled, status="cancelled", said=r"already_decided|cancelled|withdrawn"
            ),
        ),
    ),
    Case(
        name="a person is reminded until the answer, and not after it",
        steps=SENT,
        policy={"default_schedule": Schedule(remind_after_s=(60,))},
        turns=(Turn(answers=(YES,), before=time_runs_out, ledger=(ANN,), status="completed"),),
        check=reminder_is_sent_once,
        cannot={"tool": CLAIM},
        requirements=("alarm:once",),
    ),
    Case(
        name="the same answer again returns what the first one did",
        steps=SENT,
        turns=(Turn(answers=(YES, YES, YES), ledger=(ANN,), status="completed", said=r"(?i)completed"),),
        cannot={"tool": CLAIM},
        requirements=("inbox:decides-once", "tasks:replay", "resume:state"),
    ),
    Case(
        name="another answer after the first is refused",
        steps=SENT,
        turns=(Turn(answers=(YES, NO), ledger=(ANN,), status="completed", said=ANOTHER),),
        cannot={"tool": CLAIM},
        requirements=("inbox:stale", "app:nonce"),
    ),
    Case(
        name="an approval after a rejection is refused",
        steps=SENT,
        turns=(Turn(answers=(NO, NO, YES), status="rejected", said=ANOTHER),),
    ),
    Case(
        name="a quorum gathers, and nobody counts twice",
        steps=WIPED,
        policy={"critical": "second", "quorum": 2},
        assurance="second",
        turns=(
            Turn(answers=(YES,), by="bob"),
            Turn(answers=(YES,), by="bob"),
            Turn(answers=(YES,), by="local", shows=("1 of 2|approved by: bob",)),
            Turn(answers=(YES,), by="carol", ledger=("wipe all",), status="completed"),
        ),
        check=votes_are_audited,
        cannot=CRITICAL,
        requirements=("approval:quorum", "inbox:worth"),
    ),
    Case(
        name="a critical call needs somebody other than its owner",
        steps=WIPED,
        policy={"same_person": frozenset({"local", "ann"})},
        assurance="second",
        turns=(
            Turn(answers=(YES,), by="ann", said=r"not suffice|is not enough"),
            Turn(answers=(YES,), by="bob", ledger=("wipe all",), status="completed"),
        ),
        cannot=CRITICAL,
        requirements=("approval:critical", "inbox:worth"),
    ),
    Case(
        name="all rows of a loop are approved at once",
        steps=ROWS,
        turns=(Turn(answers=(YES,), ledger=(ANN, "send eve 1 False", "send cy 1 False"), status="completed"),),
        cannot={"tool": CLAIM, **_except(("form", "form, pushed", "task"), THREE_LINES)},
        requirements=("loops:batch",),
    ),
    Case(
        name="a row that was left out does not run",
        steps=ROWS,
        turns=(Turn(answers=(Answer(rows=(0, 2)),), ledger=(ANN, "send cy 1 False"), status="completed"),),
        cannot=BY_NAME,
        requirements=("loops:batch", "inbox:rows", "terminal:rows"),
    ),
    Case(
        name="an edited row runs as it was edited",
        steps=ROWS,
        turns=(
            Turn(
                answers=(Answer(rows=(0, 1), row_edits={1: {"to": "bob", "copies": 3, "urgent": True}}),),
                ledger=(ANN, BOB),
                status="completed",
            ),
        ),
        check=edited_as("1/to", "1/copies", "1/urgent"),
        cannot=BY_NAME,
        requirements=("inbox:rows", "terminal:rows"),
    ),
    Case(
        name="a row whose edit fails the schema decides nothing",
        steps=ROWS,
        turns=(Turn(answers=(Answer(row_edits={1: {"copies": "three"}}, stops=True),), said=r"copies|Row 2"),),
        cannot=BY_NAME,
        requirements=("inbox:rows", "terminal:rows"),
    ),
    Case(
        name="a filled-in form is the result",
        steps=ASKED,
        turns=(
            Turn(answers=(Answer(content={"city": "Oslo", "nights": 2}),), ledger=("note Oslo",), status="completed"),
        ),
        check=result_is({"approved": True, "content": {"city": "Oslo", "nights": 2}}),
        cannot={"tool": CLAIM},
    ),
    Case(
        name="a form whose content does not fit decides nothing",
        steps=ASKED,
        turns=(
            Turn(answers=(Answer(content={"city": "Oslo", "nights": 0}),), said=r"nights|minimum|another look"),
            Turn(answers=(Answer(content={"city": "Oslo", "nights": 2}),), ledger=("note Oslo",), status="completed"),
        ),
        cannot={"tool": CLAIM},
    ),
    Case(name="a form is rejected", steps=ASKED, turns=(Turn(answers=(Answer(approves=False),), status="rejected"),)),
    Case(
        name="a reviewed plan starts when it was approved",
        steps=SHORT,
        options={"review": "person"},
        turns=(Turn(answers=(YES,), ledger=("note x",), status="completed", shows=("Start this plan", "note")),),
        cannot={"tool": CLAIM},
        requirements=("plan:review",),
    ),
    Case(
        name="a reviewed plan is approved with the calls that are known",
        steps=REVIEWED,
        options={"review": "person"},
        turns=(Turn(answers=(Answer(covers=True),), ledger=("note x", ANN), status="completed"),),
        cannot=BY_NAME,
        requirements=("plan:review",),
    ),
    Case(
        name="a plan that was edited in its review runs as edited",
        steps=REVIEWED,
        options={"review": "person"},
        turns=(
            Turn(
                answers=(Answer(plan=plan(tool_step("m", "note", {"text": "mine"}))),),
                ledger=("note mine",),
                status="completed",
            ),
        ),
        check=plan_was_revised,
        cannot=BY_NAME,
        requirements=("plan:review",),
    ),
    Case(
        name="a plan that was edited into one that cannot run decides nothing",
        steps=REVIEWED,
        options={"review": "person"},
        turns=(
            Turn(answers=(Answer(plan=plan(tool_step("m", "eraze", {}))),), said="eraze"),
            Turn(answers=(YES,), ledger=("note x",)),
        ),
        cannot=BY_NAME,
        requirements=("plan:review",),
    ),
    Case(
        name="a rejected plan begins nothing",
        steps=SHORT,
        options={"review": "person"},
        turns=(Turn(answers=(NO,), status="rejected"),),
        requirements=("plan:review",),
    ),
    Case(
        name="a lost call that happened goes on with its result",
        steps=PAID,
        turns=(
            Turn(
                answers=(Answer(content={"happened": True, "result": {"id": 7}}),),
                ledger=("pay 7",),
                status="completed",
            ),
        ),
        check=result_is({"id": 7}),
        cannot=RECONCILED,
        requirements=("approval:reconcile",),
    ),
    Case(
        name="a lost call that did not happen runs again",
        steps=PAID,
        turns=(Turn(answers=(Answer(content={"happened": False}),), ledger=("pay 7", "pay 7"), status="completed"),),
        cannot=RECONCILED,
        requirements=("approval:reconcile",),
    ),
    Case(
        name="a lost call is given up",
        steps=PAID,
        turns=(Turn(answers=(NO,), ledger=("pay 7",), status="failed"),),
        cannot=_except(FORMS, Cannot("the question is not put there", ("pay 7",))),
    ),
    Case(
        name="hidden characters of an argument are escaped and counted",
        steps=(tool_step("a", "send", {"to": HIDDEN}),),
        turns=(
            Turn(
                answers=(YES,),
                ledger=(f"send {HIDDEN} 1 False",),
                status="completed",
                shows=(r"escaped: 3|3 invisible or control", r"\\u001b\[2J\\u202e\\u200b"),
            ),
        ),
        cannot={"tool": CLAIM, "python": Cannot(NO_SIGHT.why, (f"send {HIDDEN} 1 False",))},
        requirements=("display:invisible", "forms:brief"),
    ),
    Case(
        name="a text that plays a page stays in the agent's box",
        steps=({**tool_step("a", "send", {"to": "ann"}), "description": FAKE},),
        turns=(
            Turn(
                answers=(YES,),
                ledger=(ANN,),
                status="completed",
                shows=(r"(?s)(ontrol or invisible|invisible or control) characters.*ann.*The (agent|plan) says.*Fine",),
            ),
        ),
        cannot={"tool": CLAIM, "python": Cannot(NO_SIGHT.why, (ANN,))},
        requirements=("voices:apart", "forms:brief"),
    ),
    Case(
        name="a value too long for one look is decided where it is shown whole",
        steps=(tool_step("a", "send", {"to": LONG}),),
        turns=(Turn(answers=(YES,), ledger=(f"send {LONG} 1 False",), status="completed", shows=(LONG,)),),
        cannot={
            **_except(FORMS, Cannot("it would be cut, so it is decided on the page")),
            "tool": CLAIM,
            "python": Cannot(NO_SIGHT.why, (f"send {LONG} 1 False",)),
        },
        requirements=("forms:whole",),
    ),
    Case(
        name="a question of another owner does not exist",
        steps=SENT,
        principal="eve",
        turns=(Turn(answers=(YES, NO), said="unknown_suspension|unknown_thread"),),
        cannot={
            name: Cannot("it is the operator's, who sees the questions of every owner", (ANN,))
            for name in ("page", "terminal")
        },
        requirements=("access:owners",),
    ),
)


def print_matrix() -> str:
    """Return the matrix: what each channel can do, and why not where it cannot."""
    names = [channel.name for channel in CHANNELS]
    width = max(len(case.name) for case in CASES)
    lines = ["  ".join(["".ljust(width), *names])]
    for case in CASES:
        marks = [("–" if name in case.cannot else "yes").ljust(len(name)) for name in names]
        lines.append("  ".join([case.name.ljust(width), *marks]).rstrip())
        reasons: dict[str, list[str]] = {}
        for name in names:
            if name in case.cannot:
                reasons.setdefault(case.cannot[name].why, []).append(name)
        lines += [f"    {', '.join(found)}: {why}" for why, found in reasons.items()]
    return "\n".join(lines)
