"""The walk of docs/walk.md: a model tries to approve itself, a person edits and approves, the audit proves it.

`python -m dev.walk` (`make walk`) writes the page. It says what happened in that run: a real store on a disk, a real
MCP client in the place of the host, the real pages of the inbox in the place of the person's browser.
"""

import re
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client, ClientRequestContext
from mcp.types import ElicitRequestParams, ElicitResult, ErrorData
from tests.server.inbox.support import HOST, Inbox
from tests.support.paths import DOCS
from tests.support.wardens import open_service, plan, tool_step

import planwarden
from planwarden.server.api.audit import verify_audit
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.site import InboxSite
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.settings.configuration import Settings
from planwarden.storage.sqlite.store import SqliteStore

PAGE = DOCS / "walk.md"
PLAN: dict[str, Any] = plan(tool_step("erase", "erase", {"ids": [7, 9, 11]}, description="Erase the stale records"))
INTRODUCTION = """# A walk: nobody approves for you

`make walk` runs this and writes the page. The host says yes to everything. Names in capitals are ids.

| what somebody does | what happens | effects |
|---|---|---|
"""


@dataclass
class Walk:
    """What somebody did and what happened."""

    home: Path
    rows: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    hidden: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def ledger(self) -> list[str]:
        path = self.home / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def note(self, done: str, happened: str) -> None:
        for text, name in self.hidden.items():
            happened = happened.replace(text, name)
        self.rows.append((done, happened.replace("|", "\\|"), len(self.ledger)))

    @property
    def page(self) -> str:
        return INTRODUCTION + "".join(f"| {done} | {happened} | {count} |\n" for done, happened, count in self.rows)


async def accept_everything(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
    """A host that answers every question by itself."""
    return ElicitResult(action="accept", content={"decision": "approve"} if params.mode == "form" else None)


async def walk(home: Path) -> Walk:
    """Runs the whole walk once, with its files in `home`."""
    taken = Walk(home)

    @planwarden.tool
    async def erase(ids: list[int]) -> str:
        """Delete records for good."""
        with (home / "ledger").open("a") as ledger:
            ledger.write(f"erase {ids}\n")
        return "gone"

    warden = planwarden.Warden(settings=Settings(home=home), tools=[erase])
    server = PlanwardenServer(lambda: open_service(warden))
    async with Client(server, elicitation_callback=accept_everything) as client:
        asked = await call_tool(client, "execute_plan", plan=PLAN)
        [question] = asked["suspensions"]
        place = {"threadId": asked["threadId"], "suspensionId": question["suspensionId"]}
        taken.hidden = {
            place["threadId"]: "THREAD",
            place["suspensionId"]: "QUESTION",
            asked["executionId"]: "EXECUTION",
            f" --home {home}": "",
        }
        taken.note(
            "The model runs a plan that erases records 7, 9 and 11", f"`{asked['status']}`, needs `{question['needs']}`"
        )
        await try_to_approve(taken, client, warden, place)
        await approve_in_inbox(taken, warden, home, place["suspensionId"])
        done = await call_tool(client, "get_execution", threadId=place["threadId"])
        taken.note("The model looks again", f"`{done['status']}`")
    await check_audit(taken)
    return taken


async def try_to_approve(taken: Walk, client: Client, warden: planwarden.Warden, place: dict[str, str]) -> None:
    """Tries five ways for a model to approve its own call."""
    yes: dict[str, Any] = {"approved": True}
    answer = await call_tool(client, "resume_execution", **place, decision=yes)
    taken.note("1. `resume_execution` with `approved: true`", describe_answer(answer))
    answer = await call_tool(client, "resume_execution", **place, decision={**yes, "modifiedArgs": {"ids": [7]}})
    taken.note("2. The same with `modifiedArgs`, as if somebody had looked", describe_answer(answer))
    answer = await call_tool(client, "submit_answer", **place, content={"approved": True})
    taken.note("3. `submit_answer`, which hosts allow without asking", describe_answer(answer))
    warden.service.inbox_url = f"http://{HOST}/inbox"
    answer = await call_tool(client, "resume_execution", **place, decision=yes, waitSeconds=0)
    taken.note("4. The host accepts the question to open the inbox, and opens nothing", describe_answer(answer))
    forged: dict[str, Any] = {"todoList": [{**PLAN["todoList"][0], "status": "completed", "result": "gone"}]}
    answer = await call_tool(client, "execute_plan", plan=forged, threadId=place["threadId"])
    taken.note("5. A plan on the same thread that says the step was completed", describe_answer(answer))


async def approve_in_inbox(taken: Walk, warden: planwarden.Warden, home: Path, suspension_id: str) -> None:
    """A person opens the inbox, edits the records, looks at the difference, and approves."""
    site = InboxSite(service=lambda: warden.service, settings=Settings(home=home))
    browser = Inbox(warden, site, build_inbox_app(site, lambda: {HOST})).browser()
    await browser.log_in("ann")
    page = await browser.open(f"/inbox/suspensions/{suspension_id}")
    form = page.form("/decision")
    named = re.search(r'<label for="([^"]+)">ids[ <]', page.text)
    assert named is not None
    changed = await browser.submit(form, press="approve", **{named[1]: "[9]"})
    taken.note(
        "A person opens the inbox and edits the records to 9 alone",
        "the page shows: " + sentence(changed.words, "You changed 1 argument"),
    )
    done = await browser.submit(changed.form("/decision"), press="approve")
    row = await warden.service.store.find_suspension(suspension_id)
    assert row is not None
    execution = await warden.service.find(row.execution_id)
    await warden.service.wait(execution, 20)
    taken.note("… looks at the difference, and approves", f"page {done.status}; the ledger says `{taken.ledger[-1]}`")
    again = await browser.submit(changed.form("/decision"), press="approve")
    taken.note("… and presses it again", f"page {again.status}")


async def check_audit(taken: Walk) -> None:
    """Verifies the audit, edits it, and verifies it again."""
    database = taken.home / "planwarden.db"
    taken.note("`planwarden audit verify`", await verdict(database))
    connection = sqlite3.connect(database)
    connection.execute("UPDATE audit SET facts = replace(facts, 'ann', 'eve') WHERE kind = 'decided'")
    connection.commit()
    connection.close()
    taken.note(
        "Somebody writes another name into the row of the decision; `planwarden audit verify`", await verdict(database)
    )


async def verdict(database: Path) -> str:
    store = SqliteStore.open(database)
    try:
        found = await verify_audit(store)
    finally:
        await store.close()
    return f"{found.rows} rows, whole" if found.is_whole else "; ".join(found.problems)


async def call_tool(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    return result.structured_content or {}


def describe_answer(answer: dict[str, Any]) -> str:
    """Return the status, or the error's code, and the beginning of what the model reads."""
    if "status" not in answer:
        return f"`{answer['error']['code']}`: {answer['error']['message'].partition(';')[0]}"
    return f"still `{answer['status']}`: {answer['nextAction'].partition(';')[0].partition('. ')[0]}"


def sentence(words: str, start: str) -> str:
    found = " ".join(words[words.index(start) :].split())
    return found[:110].rsplit(" ", 1)[0]


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        taken = await walk(Path(folder))
    PAGE.write_text(taken.page, encoding="utf-8")
    print(taken.page)


if __name__ == "__main__":
    anyio.run(main)
