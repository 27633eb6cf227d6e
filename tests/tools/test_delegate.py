"""A goal delegated to a second planwarden over stdio: waited for, asked about, cancelled, never started twice."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.settings.configuration import load_settings
from planwarden.storage.sql.rows import decode_events
from planwarden.tools.delegate import delegation
from planwarden.tools.delegate.agent import AgentUnreachable, RemoteAgent
from planwarden.tools.delegate.child import MAX_CALLS, ChildQuestion, DelegatedGoal
from tests.kit import Authority, Requester, Suspension, ev, open_inbox, plan, requirement, start_as, tool_step
from tests.support.forking import forked_command_line
from tests.tools.downstream.support import WAIT_S, Place, read_error, run_call, wait_until

TOOLS = '''
import planwarden, time
from pathlib import Path

@planwarden.tool
def erase(path: str) -> str:
    """Erase it."""
    with (Path(__file__).parent / "erased").open("a") as file:
        file.write(path)
    return "erased"

@planwarden.tool(risk="confirm")
def soft(path: str) -> str:
    """Touch it."""
    return erase(path)
'''
OUTPUT = "the agent's answer"
FREE = '[tools."delegate_to_agent"]\nrisk = "read"\n[servers.bob]\nagent = true\n'


class Bob:
    """The agent's home, and the home of the parent, which has the agent as a server."""

    def __init__(self, folder: Path) -> None:
        self.home, self.parent = folder / "bob", Place(folder / "parent", settings=FREE)
        self.home.mkdir()
        self.parent.home.mkdir()
        (self.home / "tools.py").write_text(TOOLS, encoding="utf-8")
        self.settings("")

    def settings(self, more: str) -> None:
        text = f'[tools]\npython = ["tools.py"]\n[approvals]\nopen_inbox = "never"\n{more}'
        (self.home / "planwarden.toml").write_text(text, encoding="utf-8")

    def set_plan(self, *steps: dict[str, JsonValue], home: Path | None = None) -> None:
        replies = [
            {"when": {"purpose": "plan"}, "reply": {"plan": plan(*steps)}},
            {"when": {"purpose": "synthesize"}, "reply": {"content": OUTPUT}},
        ]
        command, *arguments = forked_command_line("serve")
        words: list[JsonValue] = [*arguments]
        model = self.home / "model.json"
        model.write_text(json.dumps({"replies": replies}), encoding="utf-8")
        env: JsonValue = {"PLANWARDEN_HOME": str(home or self.home), "PLANWARDEN_MODEL": f"scripted:{model}"}
        self.parent.configure({"bob": {"command": command, "args": words, "env": env}})

    def warden(self) -> planwarden.Warden:
        """The agent's own store, as its operator sees it."""
        return planwarden.Warden(
            settings=load_settings(home=self.home, environment={"PLANWARDEN_MODEL": f"scripted:{self.home}/model.json"})
        )

    def threads(self) -> list[tuple[str, str]]:
        if not (self.home / "planwarden.db").exists():
            return []
        with closing(sqlite3.connect(f"file:{self.home}/planwarden.db?mode=ro", uri=True)) as connection:
            return list(connection.execute("SELECT thread_id, status FROM executions"))

    @property
    def erased(self) -> str:
        path = self.home / "erased"
        return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture
def bob(tmp_path: Path) -> Bob:
    return Bob(tmp_path)


GREETING = "Send a friendly greeting"


def greeting(calls: int) -> list[dict[str, JsonValue]]:
    """A friendly question that covers other calls."""
    payroll = [tool_step(f"s{n}", "soft", {"path": f"/payroll-{n}"}) for n in range(calls)]
    ask = tool_step("ask", "displayConfirmation", {"action": GREETING}, confirms=[f"s{n}" for n in range(calls)])
    return [ask, *payroll]


ERASE = tool_step("erase", "erase", {"path": "old"})
SUM = tool_step("sum", "calculator", {"expression": "1+1"})


def show_calls(question: Suspension) -> list[tuple[str, dict[str, JsonValue]]]:
    return [(call.tool_name, call.arguments) for call in question.releases]


async def delegate(warden: planwarden.Warden, goal: str = "do it", **more: JsonValue) -> planwarden.Execution:
    """Returns the execution that delegated the goal, once it waits for a person or has ended."""
    step = tool_step("a", "delegate_to_agent", {"agent": "bob", "goal": goal})
    execution = await warden.execute_plan(plan(step), wait_seconds=0, options=more or None)
    return await wait_for_person(warden, execution)


async def wait_for_person(
    warden: planwarden.Warden, execution: planwarden.Execution, *, before: str | None = None
) -> planwarden.Execution:
    """Returns the execution once it waits for a person or has ended; the suspension `before` must be closed."""
    for _ in range(int(WAIT_S * 50)):
        execution = await warden.get_execution(execution.thread_id)
        asked = [found.suspension_id for found in execution.suspensions if found.kind != "wait"]
        if execution.status not in ("running", "suspended") or (asked and before not in asked):
            return execution
        await anyio.sleep(0.02)
    raise AssertionError(f"it still is {execution.status}")


async def decide(warden: planwarden.Warden, execution: planwarden.Execution, *, yes: bool) -> planwarden.Execution:
    [question] = execution.suspensions
    decision = planwarden.Decision(approved=yes, reason=None if yes else "not now")
    await warden.resume_execution(execution.thread_id, question.suspension_id, decision, wait_seconds=0)
    return await wait_for_person(warden, execution, before=question.suspension_id)


@requirement("delegate:covered", "delegate:questions")
async def test_what_a_remote_confirmation_releases_is_shown_as_facts_before_it_is_approved(bob: Bob) -> None:
    bob.set_plan(*greeting(1))
    async with bob.parent.warden() as warden:
        execution = await delegate(warden)
        [question] = execution.suspensions
        assert (question.kind, question.addressee, question.asker) == ("delegated", "human", "agent 'bob'")
        assert question.message == GREETING and " approve " in " ".join(question.found)
        assert show_calls(question) == [("displayConfirmation", {"action": GREETING}), ("soft", {"path": "/payroll-0"})]
        browser = open_inbox(warden).browser()
        await browser.log_in()
        page = await browser.open(f"/inbox/suspensions/{question.suspension_id}")
        assert "/payroll-0" in page.words.split("The agent says")[0] and "as agent 'bob' says" in page.words
        assert (await browser.decide(question.suspension_id, "approve")).status == 303
        done = await wait_for_person(warden, execution, before=question.suspension_id)
        assert done.status == "completed", done.steps
    assert bob.erased == "/payroll-0" and [status for _, status in bob.threads()] == ["completed"]


@requirement("delegate:covered")
async def test_a_remote_question_that_covers_more_than_can_be_shown_is_not_approved_here(bob: Bob) -> None:
    bob.set_plan(*greeting(MAX_CALLS))
    async with bob.parent.warden() as warden:
        execution = await delegate(warden)
        [question] = execution.suspensions
        reason = f"it covers {MAX_CALLS + 1} calls, and at most {MAX_CALLS} can be shown here"
        assert question.undecidable is not None and question.undecidable.startswith(reason)
        assert " approve " in question.undecidable and question.releases == ()
        with pytest.raises(planwarden.PlanwardenError, match="cannot be approved here, only rejected") as refused:
            await decide(warden, execution, yes=True)
        assert refused.value.code == "undecidable_here"
        rejected = await decide(warden, execution, yes=False)
        assert rejected.status == "failed"
    assert bob.erased == ""


@requirement("delegate:covered")
async def test_a_remote_question_that_changed_after_it_was_shown_is_asked_again(bob: Bob) -> None:
    bob.set_plan(tool_step("s", "soft", {"path": "/letters"}))
    async with bob.parent.warden() as warden:
        execution = await delegate(warden)
        async with bob.warden() as agent:
            [theirs] = (await agent.list_suspensions()).suspensions
            claim = Authority(assurance="claimed", channel="mcp", principal="local")
            edit = planwarden.Decision(approved=True, modified_args={"path": "/payroll"})
            place = (theirs.thread_id, theirs.suspension_id)
            await agent.service.answer(*place, edit, claim, principal="local")
        again = await decide(warden, execution, yes=True)
        [question] = again.suspensions
        assert "changed there after you approved it, so nothing was sent" in question.found[0] and bob.erased == ""
        assert show_calls(question) == [("soft", {"path": "/payroll"})]
        done = await decide(warden, again, yes=True)
        assert done.status == "completed", done.steps
    assert bob.erased == "/payroll"


CALL: JsonValue = {"toolName": "soft", "arguments": {"path": "x"}}
UNSHOWN: list[tuple[str, JsonValue]] = [
    ("confirms", "soft"),
    ("confirms", [{"toolName": "soft"}]),
    ("confirms", [{"toolName": "x" * 200, "arguments": {}}]),
    ("confirms", [{"toolName": "soft", "arguments": {"path": "x" * 40_000}}]),
    ("confirms", [{"toolName": "soft", "arguments": {"path": float("nan")}}]),
    ("confirms", list[JsonValue]([CALL]) * 1_000),
    ("releases", list[JsonValue]([CALL]) * 21),
    ("toolCall", [CALL]),
    ("message", "x" * 501),
    ("undecidable", "no"),
    ("answerSchema", {"type": "array"}),
]


@requirement("delegate:covered")
@pytest.mark.parametrize(("key", "value"), UNSHOWN)
def test_whatever_an_agent_says_its_question_is_shown_whole_or_cannot_be_approved(key: str, value: JsonValue) -> None:
    child = DelegatedGoal(agent="bob", thread_id="t")
    said: dict[str, JsonValue] = {"suspensionId": "s", "message": "?", "toolCall": CALL, "confirms": [CALL]}
    plain = ChildQuestion.model_validate(said)
    changed = ChildQuestion.model_validate({**said, key: value})
    assert plain.suspend(child).undecidable == "" and len(plain.suspend(child).releases) == 2
    assert changed.suspend(child).undecidable and changed.suspend(child).releases == ()
    assert changed.fingerprint != plain.fingerprint


@requirement("delegate:questions", "rehearsal:nothing-done")
async def test_neither_a_rehearsal_nor_an_approval_here_does_what_needs_the_agents_own_person(bob: Bob) -> None:
    bob.set_plan(ERASE)
    async with bob.parent.warden() as warden:
        rehearsed = await delegate(warden, rehearse=True)
        [call] = rehearsed.steps[0].actual_tool_calls
        assert (rehearsed.status, call.status, bob.threads()) == ("rehearsed", "rehearsed", [])
        assert call.arguments == {"agent": "bob", "goal": "do it"}
        execution = await delegate(warden)
        [question] = execution.suspensions
        assert question.risk == "dangerous" and show_calls(question) == [("erase", {"path": "old"})]
        again = await decide(warden, execution, yes=True)
        [question] = again.suspensions
        assert "did not count there" in " ".join(question.found) and bob.erased == ""
        rejected = await decide(warden, again, yes=False)
        assert rejected.status == "failed" and "rejected" in read_error(rejected)
    assert bob.erased == "" and bob.threads()[0][1] == "rejected"


@requirement("delegate:questions")
async def test_a_question_that_was_decided_at_the_agent_is_closed_here(bob: Bob) -> None:
    bob.set_plan(ERASE)
    async with bob.parent.warden() as warden:
        execution = await delegate(warden)
        [ours] = execution.suspensions
        async with bob.warden() as agent:
            [theirs] = (await agent.list_suspensions()).suspensions
            yes = planwarden.Decision(approved=True)
            await agent.resume_execution(theirs.thread_id, theirs.suspension_id, yes, wait_seconds=WAIT_S)
        done = await wait_for_person(warden, execution, before=ours.suspension_id)
        assert done.status == "completed", done.steps
        with pytest.raises(planwarden.PlanwardenError, match="settled at agent 'bob'"):
            await warden.resume_execution(execution.thread_id, ours.suspension_id, planwarden.Decision(approved=True))
    assert bob.erased == "old"


@requirement("delegate:durable")
async def test_a_parent_killed_in_the_middle_continues_with_the_same_goal(bob: Bob) -> None:
    bob.set_plan(tool_step("wait", "wait", {"seconds": 3}))
    step = tool_step("a", "delegate_to_agent", {"agent": "bob", "goal": "do it"})
    path = bob.parent.home / "plan.json"
    path.write_text(json.dumps(plan(step)), encoding="utf-8")
    command = forked_command_line("run", str(path))
    environment = {**os.environ, "PLANWARDEN_HOME": str(bob.parent.home)}
    with anyio.fail_after(WAIT_S * 2):
        async with await anyio.open_process(command, env=environment, stdin=None) as process:
            await wait_until(lambda: "waits for agent" in read_log(bob.parent.home))
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        assert len(bob.threads()) == 1
        async with planwarden.Warden(settings=load_settings(home=bob.parent.home, environment={})) as warden:
            [(thread_id,)] = read_rows(bob.parent.home, "SELECT thread_id FROM executions")
            done = await wait_for_person(warden, await warden.get_execution(thread_id))
            assert done.status == "completed", done.steps
    assert [status for _, status in bob.threads()] == ["completed"]


@requirement("delegate:durable", "key:once")
async def test_a_goal_whose_answer_was_lost_is_not_started_a_second_time_when_a_person_sends_it_again(
    bob: Bob, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob.set_plan(SUM)
    lost: list[str] = []
    call = RemoteAgent.call

    async def call_and_lose_the_first_answer(self: RemoteAgent, tool: str, *given: Any, **more: Any) -> JsonValue:
        answer = await call(self, tool, *given, **more)
        if not lost:
            lost.append(tool)
            raise AgentUnreachable("the line went dead")
        return answer

    monkeypatch.setattr(RemoteAgent, "call", call_and_lose_the_first_answer)
    async with bob.parent.warden() as warden:
        execution = await delegate(warden)
        [question] = execution.suspensions
        assert (question.kind, lost) == ("reconcile", ["run_goal"])
        again = planwarden.Decision(approved=True, content={"happened": False})
        await warden.resume_execution(execution.thread_id, question.suspension_id, again, wait_seconds=0)
        done = await wait_for_person(warden, execution, before=question.suspension_id)
        assert done.status == "completed", done.steps
    assert [status for _, status in bob.threads()] == ["completed"]


@requirement("delegate:durable")
async def test_cancelling_the_execution_cancels_the_agents_execution(bob: Bob) -> None:
    bob.set_plan(tool_step("ask", "displayConfirmation", {"action": "Send the letter?"}))
    async with bob.parent.warden() as warden:
        execution = await delegate(warden)
        assert (await warden.cancel_execution(execution.thread_id)).status == "cancelled"
        await wait_until(lambda: [status for _, status in bob.threads()] == ["cancelled"])


@requirement("delegate:bounded")
async def test_a_goal_delegated_in_a_circle_is_refused(bob: Bob) -> None:
    bob.set_plan(home=bob.parent.home)
    settings = load_settings(home=bob.parent.home, environment={})
    with anyio.fail_after(WAIT_S):
        async with planwarden.Warden(settings=settings) as warden:
            execution = await delegate(warden)
            assert execution.status == "failed" and "comes back to where it was delegated" in read_error(execution)


@requirement("delegate:bounded")
async def test_a_goal_is_delegated_three_times_at_most_and_a_spent_budget_not_at_all(bob: Bob) -> None:
    bob.set_plan(SUM)
    async with bob.parent.warden() as warden:
        step = plan(tool_step("a", "delegate_to_agent", {"agent": "bob", "goal": "x"}))
        deep = await start_as(warden.service, step, Requester("local", chain=("1", "2", "3")))
        assert "delegated 3 times already" in read_error(deep)
        with pytest.raises(planwarden.PlanwardenError, match="delegated 4 times"):
            await start_as(warden.service, step, Requester("local", chain=("1", "2", "3", "4")))
        assert bob.threads() == []
        done = await delegate(warden, budgets={"toolCalls": 5, "seconds": 60})
        assert done.status == "completed" and done.usage.tool_calls == 1, done.steps
        result = done.steps[0].result
        assert isinstance(result, dict) and (result["output"], result["agent"]) == (OUTPUT, "bob")
    body = read_rows(bob.home, "SELECT body FROM events ORDER BY position LIMIT 1")[0][0]
    created = next(event for event in decode_events(body) if isinstance(event, ev.ExecutionCreated))
    tool_calls, seconds = created.options.budget_tool_calls, created.options.budget_seconds
    assert tool_calls == 4 and seconds is not None and 0 < seconds <= 60 and len(created.chain) == 1


@requirement("delegate:durable")
async def test_any_server_whose_tool_takes_a_goal_is_an_agent_and_a_lost_handle_is_unknown(tmp_path: Path) -> None:
    place = Place(tmp_path, settings=FREE.replace("bob", "d") + 'run_tool = "echo"\n')
    place.serve(d="good")
    goal: JsonValue = {"agent": "d", "goal": "hello"}
    async with place.warden() as warden:
        done = await run_call(warden, "delegate_to_agent", goal)
        assert done.status == "completed" and done.steps[0].result == {"said": "hello"}
    place.settings = place.settings.replace("echo", "die")
    place.serve(d="good")
    async with place.warden() as warden:
        [question] = (await run_call(warden, "delegate_to_agent", goal)).suspensions
        assert question.kind == "reconcile" and "nobody knows its handle" in question.found[0]
        assert place.ledger.count("die hello") == 1


@requirement("delegate:durable")
async def test_a_goal_whose_handle_cannot_be_read_is_an_unknown_outcome_and_no_result(tmp_path: Path) -> None:
    place = Place(tmp_path, settings=FREE)
    place.serve(bob="agent")
    async with place.warden() as warden:
        [question] = (await delegate(warden, "odd")).suspensions
        assert question.kind == "reconcile" and "cannot be read" in question.found[0]


async def test_a_goal_for_a_disabled_agent_fails_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path, settings=f"{FREE}start_timeout_s = {2 * WAIT_S}\n")
    place.configure({"bob": place.entry("agent", disabled=True)})
    async with place.warden() as warden:
        assert "it is disabled; nothing was sent" in read_error(await delegate(warden))


@requirement("delegate:durable")
async def test_a_poll_that_says_nothing_about_the_goal_is_repeated_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "UNREACHABLE_S", 0.01)
    place = Place(tmp_path, settings=FREE)
    place.serve(bob="agent")
    async with place.warden() as warden:
        done = await delegate(warden)
        assert done.status == "completed", done.steps
        result = done.steps[0].result
        assert isinstance(result, dict) and (result["output"], result["threadId"]) == ("done", "t1")


@requirement("delegate:durable")
async def test_an_agent_that_does_not_answer_has_not_failed_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"UNREACHABLE_S": 0.01, "WATCH_S": 0.01, "ANSWER_S": 1.0}.items():
        monkeypatch.setattr(delegation, name, seconds)
    place = Place(tmp_path, settings=f"{FREE}timeout_s = 3\n")
    place.serve(bob="deaf_agent")
    async with place.warden() as warden:
        asked = await delegate(warden)
        assert [question.kind for question in asked.suspensions] == ["delegated"], asked.steps
        # The agent is silent once more, and then says that the question is settled.
        done = await wait_for_person(warden, asked, before=asked.suspensions[0].suspension_id)
        assert done.status == "completed", done.steps


@requirement("delegate:durable")
async def test_an_agent_that_does_not_answer_within_the_tools_limit_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    limited = FREE.replace('"read"\n', '"read"\ntimeout_s = 2\n')
    place = Place(tmp_path, settings=f'{limited}start = "eager"\n')
    place.serve(bob="deaf_agent")
    async with place.warden() as warden:
        await warden.service.wait_for_catalogue()
        [question] = (await delegate(warden)).suspensions
        assert question.kind == "reconcile", question


@requirement("delegate:questions")
async def test_an_agent_that_settles_and_asks_again_for_ever_gets_no_answer_that_nobody_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "WATCH_S", 0.01)
    monkeypatch.setattr(delegation, "MAX_SETTLED", 3)
    place = Place(tmp_path, settings=FREE)
    place.serve(bob="fickle_agent")
    async with place.warden() as warden:
        execution = await delegate(warden)
        while execution.suspensions == () or execution.suspensions[0].kind != "reconcile":
            execution = await warden.get_execution(execution.thread_id)
            await anyio.sleep(0.02)
        assert "asked 4 questions" in execution.suspensions[0].found[0], execution.suspensions
    assert not [line for line in place.ledger if line.startswith("resume")]


def read_rows(home: Path, query: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(f"file:{home}/planwarden.db?mode=ro", uri=True)) as connection:
        return list(connection.execute(query))


def read_log(home: Path) -> str:
    if not (home / "planwarden.db").exists():
        return ""
    try:
        return str(read_rows(home, "SELECT body FROM events") or "")
    except sqlite3.OperationalError:
        return ""
