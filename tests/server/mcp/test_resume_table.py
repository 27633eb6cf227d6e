"""What `resume_execution` does, row by row of its table in docs/security.md, with a ledger of effects."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from planwarden.agent.approval.answers import Decision
from planwarden.server.mcp.elicitation.forms import compute_form_digest
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.tables import ToolSettings
from tests.requirements import requirement
from tests.server.mcp.http_support import serving
from tests.server.mcp.support import (
    ERAS,
    Browser,
    Document,
    Era,
    Person,
    approving,
    ids_of,
    nobody,
    ok,
    question_of,
    refused,
    served,
)
from tests.support.forking.command import forked_command_line
from tests.support.wardens import Ledger, confirm, model_step, plan, tool_step, warden

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("era", ERAS)

CONFIRMED = plan(confirm("a", "write it down?"), tool_step("b", "note", {"text": "x"}))
DANGEROUS = plan(tool_step("a", "erase", {"ids": [1]}))
NOW: Document = {"decision": {"approved": True}, "waitSeconds": 0}


async def _proof(client: Client, thread_id: str) -> tuple[str, str]:
    """Assurance and channel of the one recorded decision."""
    history = await ok(client, "get_execution", threadId=thread_id, observationsAfter=0)
    [resumed] = [entry["data"] for entry in history["observations"] if entry["type"] == "AGENT_RESUMED"]
    return resumed["assurance"], resumed["channel"]


@requirement("resume:table")
@both
@pytest.mark.parametrize("steps", [CONFIRMED, DANGEROUS], ids=["client", "human"])
async def test_row_a_rejection_is_recorded_and_enforced(tmp_path: Path, era: Era, steps: Document) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=steps)
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": False, "reason": "no"})
        assert (done["status"], ledger.lines) == ("rejected", [])


@requirement("resume:table")
@both
async def test_row_a_form_that_approves_what_a_form_may_approve_continues(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        view, _ = await found.warden.service.suspensions.view(**_snake(ids_of(asked)), principal="local")
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        assert (done["status"], ledger.lines, len(person.shown)) == ("completed", ["note x"], 1)
        assert await _proof(client, done["threadId"]) == ("client", "elicitation")
        # What the person saw is in the audit.
        page = await found.warden.service.audit.read_page(thread_id=done["threadId"])
        [rendered] = [found for row in page.rows if (found := row.facts.get("rendered"))]
        assert len(str(rendered)) >= 32 and compute_form_digest(view).startswith(str(rendered))


def _snake(ids: Document) -> Document:
    return {"thread_id": ids["threadId"], "suspension_id": ids["suspensionId"]}


@requirement("resume:table")
@both
async def test_row_a_form_accepted_for_a_dangerous_call_leaves_it_pending(tmp_path: Path, era: Era) -> None:
    ledger, browser = Ledger(), Browser(content={"decision": "approve", "approved": True})
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=browser) as client,
    ):
        for inbox in (None, "http://127.0.0.1:1/inbox"):
            found.warden.service.inbox_url = inbox
            asked = await ok(client, "execute_plan", plan=DANGEROUS)
            still = await ok(client, "resume_execution", **ids_of(asked), **NOW)
            assert (still["status"], still["awaiting"], ledger.lines) == ("suspended", "human", [])
        assert len(browser.sent) == 1


@requirement("resume:table")
@both
@pytest.mark.parametrize("inbox", [None, "http://127.0.0.1:1/inbox"])
async def test_row_no_way_to_ask_says_everything_a_person_needs(tmp_path: Path, era: Era, inbox: str | None) -> None:
    ledger = Ledger()
    settings = Settings(home=tmp_path, tools={"erase": ToolSettings(answer_within_s=600)})
    async with (
        served(tmp_path, tools=ledger.tools(), settings=settings) as found,
        Client(found.server, mode=era) as client,
    ):
        found.warden.service.inbox_url = inbox
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        still = await ok(client, "resume_execution", **ids_of(asked), **NOW)
        question, said = question_of(still), still["nextAction"]
        assert (still["status"], still["awaiting"]) == ("suspended", "human")
        command = f"planwarden approve {question['suspensionId']}"
        url = f"{inbox}/suspensions/{question['suspensionId']}" if inbox else None
        assert question["howToAnswer"] == {**({"inboxUrl": url} if url else {}), "command": command}
        assert "person must decide; do not retry" in said and command in said and (url is None or url in said)
        assert question["expiresAt"][:16] in said and "reject" in said
        for _ in range(4):
            await ok(client, "resume_execution", **ids_of(asked), **NOW)
        assert (await refused(client, "resume_execution", **ids_of(asked), **NOW))["code"] == "rate_limited"
        assert ledger.lines == []


@requirement("resume:table")
@both
async def test_row_a_question_to_the_caller_needs_nobody(tmp_path: Path, era: Era) -> None:
    async with (
        served(tmp_path) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(model_step("a")))
        assert question_of(asked)["addressee"] == "caller"
        bad = await refused(client, "resume_execution", **ids_of(asked), decision={"content": {"who": "x"}})
        assert bad["code"] == "invalid_arguments"
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"content": {"content": "thought"}})
        assert done["status"] in ("completed", "suspended") and done["steps"][0]["status"] != "suspended"


@requirement("resume:table")
@both
async def test_row_a_trusted_callers_word_counts_and_is_recorded_as_a_claim(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    settings = Settings(home=tmp_path, policy=OperatorPolicy(trust_caller=True))
    async with (
        served(tmp_path, tools=ledger.tools(), settings=settings) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        assert (done["status"], ledger.lines) == ("completed", ["erase [1]"])
        assert (await _proof(client, done["threadId"]))[0] == "claimed"


@requirement("resume:table")
@both
@pytest.mark.parametrize("person", [Person("decline"), Person("cancel"), Person(), Person(content={})], ids=str)
async def test_row_a_form_without_a_decision_leaves_it_open(tmp_path: Path, era: Era, person: Person) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=Person(person.action, person.content)) as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        still = await ok(client, "resume_execution", **ids_of(asked), **NOW)
        assert (still["status"], still["awaiting"], ledger.lines) == ("suspended", "human", [])


@requirement("resume:table")
async def test_row_an_embedding_program_decides() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(DANGEROUS)
        done = await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, Decision(approved=True))
        assert (done.status, ledger.lines) == ("completed", ["erase [1]"])
        view = await w.get_execution(done.thread_id, observations_after=0)
        [resumed] = [entry.data for entry in view.observations or () if entry.type == "AGENT_RESUMED"]
        assert resumed["assurance"] == "embedder"


@requirement("resume:table")
@both
@pytest.mark.parametrize("word", ["false", "true", 1, "yes", [], {}], ids=str)
async def test_row_only_a_boolean_is_a_word(tmp_path: Path, era: Era, word: Any) -> None:
    ledger = Ledger()
    settings = Settings(home=tmp_path, policy=OperatorPolicy(trust_caller=True))
    async with (
        served(tmp_path, tools=ledger.tools(), settings=settings) as found,
        Client(found.server, mode=era) as client,
    ):
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        error = await refused(client, "resume_execution", **ids_of(asked), decision={"approved": word})
        assert (error["code"], ledger.lines) == ("invalid_arguments", [])


TOOLS = """
from pathlib import Path

import planwarden


@planwarden.tool
def erase(ids: list[int]) -> str:
    \"\"\"Delete records.\"\"\"
    with Path(__file__).with_name("ledger").open("a") as ledger:
        ledger.write("erase\\n")
    return "gone"
"""


@requirement("resume:table")
@pytest.mark.slow
@both
async def test_a_dangerous_call_waits_over_stdio_and_http_whatever_the_client_answers(tmp_path: Path, era: Era) -> None:
    file = tmp_path / f"danger_{era}.py"
    file.write_text(TOOLS)
    (tmp_path / "planwarden.toml").write_text(f'[tools]\npython = ["{file.name}"]\n')
    command, *words = forked_command_line("--home", str(tmp_path), "serve")

    async def tried(client: Client) -> None:
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        for _ in range(5):
            still = await ok(client, "resume_execution", **ids_of(asked), **NOW)
            assert (still["status"], still["awaiting"]) == ("suspended", "human")
        assert (await refused(client, "resume_execution", **ids_of(asked), **NOW))["code"] == "rate_limited"

    process = StdioServerParameters(command=command, args=words)
    async with Client(process, mode=era, elicitation_callback=Browser(content={"decision": "approve"})) as client:
        await tried(client)
    settings = Settings(home=tmp_path, python_files=(file,))
    async with (
        serving(settings) as url,
        Client(url, mode=era, elicitation_callback=Browser(content={"decision": "approve"})) as client,
    ):
        await tried(client)
    assert not (tmp_path / "ledger").exists()
