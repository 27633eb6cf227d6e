"""Four users, each from the first command to what they came for: `python -m dev.users` (`make walk`).

Everything is real: a clean clone with an environment of its own, processes, terminals, MCP clients over stdio and HTTP,
the pages of the inbox. It prints what each does and what they see, with the seconds since they began, and stops where
something is not as it should be.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from benchmarks.score.harness import run_server
from benchmarks.startup import PROGRAM, connect
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from tests.server.cli.support import Cli, CommandResult, clean_environment, start_on_terminal
from tests.server.inbox.support import follow_link
from tests.support import wardens
from tests.support.paths import ROOT

from dev.walk import accept_everything

SERVER = """
import sys
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer(sys.argv[1])

@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def find(topic: str) -> str:
    '''Find what is known of a topic.'''
    return f"{topic}: three entries"

@server.tool()
def send(to: str, text: str) -> str:
    '''Send a message.'''
    with open(sys.argv[2], "a") as ledger:
        ledger.write(f"{to}: {text}\\n")
    return "sent"

server.run("stdio")
"""
FIVE_MINUTES_S = 300.0


@dataclass
class User:
    """One user with a home. `say` prints what happened; what is not as it should be ends the walk."""

    name: str
    folder: Path
    cli: Cli = field(init=False)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.cli = Cli(self.folder / "home")
        print(f"\n== {self.name}")

    def say(self, done: str, seen: str) -> None:
        words = " ".join(seen.split()).replace(str(self.folder), "")
        print(f"{time.monotonic() - self.began:6.1f} s  {done}\n          {words[:200]}")

    def run(self, *words: str, code: int = 0, stdin: str = "") -> CommandResult:
        """Run a command of planwarden without a terminal."""
        result = self.cli.spawn(*words, stdin=stdin)
        self.say(f"planwarden {shlex.join(words)}", (result.out or result.err).strip())
        expect(result.code == code, f"exit code {result.code} instead of {code}", result.out + result.err)
        return result

    def type(self, *words: str, answers: Sequence[tuple[str, str]], code: int = 0) -> str:
        """Run a command on a terminal; type each answer once its text is there."""
        terminal = start_on_terminal(self.cli, *words)
        try:
            for text, answer in answers:
                terminal.expect(text)
                terminal.type(answer)
            found = terminal.finish()
        finally:
            terminal.close()
        self.say(f"planwarden {shlex.join(words)}, typed {[answer for _, answer in answers]}", terminal.text[-300:])
        expect(found == code, f"exit code {found} instead of {code}", terminal.text)
        return terminal.text

    async def call(self, client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await client.call_tool(tool, arguments)
        answer: dict[str, Any] = result.structured_content or {}
        told: dict[str, Any] = answer.get("error") or {
            name: answer[name] for name in ("status", "nextAction") if name in answer
        }
        self.say(f"the assistant calls {tool}", json.dumps(told))
        return answer


def expect(is_so: bool, what: str, seen: object) -> None:
    if not is_so:
        sys.exit(f"not as it should be: {what}\n{seen}")


def plan(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return wardens.plan(*(wardens.tool_step(f"s{number}", *call) for number, call in enumerate(calls, 1)))


async def walk_as_newcomer(folder: Path) -> None:
    """Has the README only: the clone, the demo, the block for the host, a plan with a question."""
    user = User("A newcomer with the README", folder)
    clone = folder / "planwarden"
    shell(user, f"git clone -q {ROOT} {clone}", cwd=folder)
    shell(user, "make demo", cwd=clone)
    program = clone / ".venv" / "bin" / "planwarden"
    block = shell(user, f"{program} config print claude-code", cwd=clone)
    entry = json.loads(block[block.index("{") :])["mcpServers"]["planwarden"]
    environment = clean_environment({"PLANWARDEN_HOME": str(user.cli.home), **entry.get("env", {})})
    async with connect(
        [entry["command"], *entry["args"]], environment, elicitation_callback=accept_everything
    ) as client:
        product = plan(("calculator", {"expression": "12 * 37"}))
        answer = await user.call(client, "execute_plan", plan=product)
        expect("444" in json.dumps(answer), "12 * 37 is 444", answer)
    user.run("init")
    shown = user.type("run", str(user.cli.home / "plans" / "first.json"), answers=[("Enter leaves it open]", "y")])
    expect("2 of 2 steps completed" in shown, "the first plan is completed", shown)
    user.say("a plan was approved and understood", f"after {time.monotonic() - user.began:.0f} s")
    expect(time.monotonic() - user.began < FIVE_MINUTES_S, "all of it takes less than five minutes", "")


def shell(user: User, command: str, *, cwd: Path) -> str:
    done = subprocess.run(
        shlex.split(command), cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False
    )
    user.say(command, (done.stdout or done.stderr)[-300:])
    expect(done.returncode == 0, f"exit code {done.returncode}", done.stdout + done.stderr)
    return done.stdout


async def walk_as_desktop_user(folder: Path) -> None:
    """Has three MCP servers, and an assistant in a host that shows forms."""
    user = User("A desktop user with three servers", folder)
    user.run("init")
    script, ledger = folder / "server.py", folder / "ledger"
    script.write_text(SERVER)
    names = ("mail", "notes", "shop")
    servers = {name: {"command": sys.executable, "args": [str(script), name, str(ledger)]} for name in names}
    (user.cli.home / "planwarden.json").write_text(json.dumps({"mcpServers": servers}))
    found = user.run("doctor")
    expect("trust notes`" in found.out, "doctor says how to trust a server", found.out)
    user.type("trust", "notes", answers=[("Enter no]", "y")])
    environment = clean_environment({"PLANWARDEN_HOME": str(user.cli.home)})
    async with connect(PROGRAM, environment, elicitation_callback=accept_everything) as client:
        listed = await client.list_tools()
        user.say("the host lists the tools", ", ".join(tool.name for tool in listed.tools))
        answer = await user.call(client, "execute_plan", plan=plan(("notes_find", {"topic": "Ann"})))
        expect(answer.get("status") == "completed", "what is trusted and only reads runs unasked", answer)
        wrong = await user.call(client, "execute_plan", plan=plan(("mail_sent", {"to": "ann"})))
        expect("mail_send" in json.dumps(wrong), "a wrong name is corrected", wrong)
        asked = await user.call(
            client, "execute_plan", plan=plan(("mail_send", {"to": "ann", "text": "hello"})), options={"waitSeconds": 1}
        )
        expect(asked.get("status") == "suspended" and not ledger.exists(), "an effect waits for a person", asked)
        async with follow_link(user.type("inbox", "--no-open", answers=[])) as browser:
            waiting = await browser.open("/inbox")
            expect("mail_send" in waiting.words, "the question is on the page", waiting.words)
            page = await browser.decide(asked["suspensions"][0]["suspensionId"], "approve")
        user.say("the person opens the inbox, and presses Approve", f"page {page.status}")
        done = await user.call(client, "get_execution", threadId=asked["threadId"])
        while done.get("status") == "running":
            await anyio.sleep(0.2)
            done = await user.call(client, "get_execution", threadId=asked["threadId"])
        expect(done.get("status") == "completed" and ledger.read_text() == "ann: hello\n", "it happened once", done)


async def walk_as_author(folder: Path) -> None:
    """Has an agent that sends plans, over stdio and over HTTP with a token, and loses an answer."""
    user = User("The author of an agent", folder)
    user.run("init")
    environment = clean_environment({"PLANWARDEN_HOME": str(user.cli.home)})
    sums = plan(("calculator", {"expression": "6 * 7"}))
    async with connect(PROGRAM, environment, elicitation_callback=accept_everything) as client:
        first = await user.call(client, "execute_plan", plan=sums, key="monday")
        expect("42" in json.dumps(first), "the plan ran over stdio", first)
    token = user.run("token", "add", "agent", "--json").json["token"]
    with run_server(user.cli.home) as url:
        user.say("planwarden serve --http --port 0", url)
        health = httpx2.get(f"{url.removesuffix('/mcp')}/healthz")
        expect(health.status_code == 200, "it is healthy", health.text)
        headers = {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            await send_over_http(user, streamable_http_client(url, http_client=http), sums)
        refused = httpx2.post(url, json={}, headers={"authorization": "Bearer wrong"})
        user.say("somebody comes with a wrong token", f"{refused.status_code}")
        expect(refused.status_code == 401, "it is refused", refused.text)


async def send_over_http(user: User, transport: Any, sums: dict[str, Any]) -> None:
    async with Client(transport, elicitation_callback=accept_everything) as client:
        started = await user.call(client, "execute_plan", plan=sums, key="monday")
        expect("42" in json.dumps(started), "the plan ran over HTTP", started)
        again = await user.call(client, "execute_plan", plan=sums, key="monday")
        expect(again["executionId"] == started["executionId"], "the same key starts once", again)
        text = await user.call(client, "execute_plan", plan=json.dumps(sums))
        expect("42" in json.dumps(text), "a plan that is sent as text is understood", text)


async def walk_as_operator(folder: Path) -> None:
    """Looks after a home: what waits, what is wrong, backup, restore, deletion."""
    user = User("An operator", folder)
    missing = user.run("doctor", code=1)
    expect("planwarden" in missing.out and "init" in missing.out, "doctor says what to do first", missing.out)
    expect(not user.cli.home.exists(), "and makes nothing", "")
    user.run("init")
    user.run("doctor")
    first = str(user.cli.home / "plans" / "first.json")
    asked = user.run("run", first, "--json", code=3).json["suspensions"][0]["suspensionId"]
    user.run("run", first, code=3)
    user.run("list")
    user.type("approve", asked[:8], answers=[("Enter leaves it open]", "y")])
    thread = user.run("list", "--json").json
    user.run("show")
    cancelled = thread["suspensions"][0]["threadId"]
    user.run("cancel", cancelled[:8])
    copy = folder / "backup.db"
    user.run("backup", str(copy))
    user.run("prune", "--days", "1", "--yes")
    user.run("aprove", code=2)
    settings = user.cli.home / "planwarden.toml"
    right = settings.read_text()
    settings.write_text("[tools]\npyhton = []\n")
    broken = user.run("doctor", code=1)
    expect("did you mean 'python'" in broken.out, "doctor names the key that was meant", broken.out)
    settings.write_text(right)
    user.run("audit", "verify")
    restored = Cli(folder / "restored")
    restored.home.mkdir(mode=0o700)
    os.replace(copy, restored.home / "planwarden.db")
    user.cli = restored
    user.run("list")
    user.run("completion", "bash")


async def main() -> None:
    walks = (walk_as_newcomer, walk_as_desktop_user, walk_as_author, walk_as_operator)
    chosen = [walk for walk in walks if not sys.argv[1:] or any(word in walk.__name__ for word in sys.argv[1:])]
    for walk in chosen:
        with tempfile.TemporaryDirectory() as folder:
            await walk(Path(folder))


if __name__ == "__main__":
    anyio.run(main)
