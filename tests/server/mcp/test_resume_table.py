"""What `resume_execution` does, row by row of its table in docs/security.md, with a ledger of effects."""

from pathlib import Path
from typing import Any

import pytest
from mcp.client.stdio import StdioServerParameters

from planwarden.server.settings.tables import ToolSettings
from tests.kit import Client, OperatorPolicy, Settings, model_step, ok, open_desk, plan, refused, requirement, tool_step
from tests.server.mcp.http_support import serving
from tests.server.mcp.support import ERAS, Browser, Document, Era, ids_of, nobody, question_of
from tests.support.forking.command import forked_command_line

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("era", ERAS)

DANGEROUS = plan(tool_step("a", "erase", {"ids": [1]}))
NOW: Document = {"decision": {"approved": True}, "waitSeconds": 0}


@requirement("resume:table")
@both
@pytest.mark.parametrize("inbox", [None, "http://127.0.0.1:1/inbox"])
async def test_row_no_way_to_ask_says_everything_a_person_needs(tmp_path: Path, era: Era, inbox: str | None) -> None:
    settings = Settings(home=tmp_path, tools={"erase": ToolSettings(answer_within_s=600)})
    async with open_desk(tmp_path, era, settings=settings) as desk:
        desk.warden.service.inbox_url = inbox
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        still = await desk.ok("resume_execution", **ids_of(asked), **NOW)
        question, said = question_of(still), still["nextAction"]
        assert (still["status"], still["awaiting"]) == ("suspended", "human")
        command = f"planwarden approve {question['suspensionId']}"
        url = f"{inbox}/suspensions/{question['suspensionId']}" if inbox else None
        assert question["howToAnswer"] == {**({"inboxUrl": url} if url else {}), "command": command}
        assert "person must decide; do not retry" in said and command in said and (url is None or url in said)
        assert question["expiresAt"][:16] in said and "reject" in said
        for _ in range(4):
            await desk.ok("resume_execution", **ids_of(asked), **NOW)
        assert (await desk.refused("resume_execution", **ids_of(asked), **NOW))["code"] == "rate_limited"
        assert desk.ledger.lines == []


@requirement("resume:table")
@both
async def test_row_a_question_to_the_caller_needs_nobody(tmp_path: Path, era: Era) -> None:
    async with open_desk(tmp_path, era, asks=nobody) as desk:
        asked = await desk.ok("execute_plan", plan=plan(model_step("a")))
        assert question_of(asked)["addressee"] == "caller"
        bad = await desk.refused("resume_execution", **ids_of(asked), decision={"content": {"who": "x"}})
        assert bad["code"] == "invalid_arguments"
        done = await desk.ok("resume_execution", **ids_of(asked), decision={"content": {"content": "thought"}})
        assert done["status"] in ("completed", "suspended") and done["steps"][0]["status"] != "suspended"


@requirement("resume:table")
@both
@pytest.mark.parametrize("word", ["false", "true", 1, "yes", [], {}], ids=str)
async def test_row_only_a_boolean_is_a_word(tmp_path: Path, era: Era, word: Any) -> None:
    settings = Settings(home=tmp_path, policy=OperatorPolicy(trust_caller=True))
    async with open_desk(tmp_path, era, settings=settings) as desk:
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        error = await desk.refused("resume_execution", **ids_of(asked), decision={"approved": word})
        assert (error["code"], desk.ledger.lines) == ("invalid_arguments", [])


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
