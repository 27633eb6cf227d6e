"""`planwarden run-goal` in its own process against a double of each provider, with tools that keep a ledger."""

import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.server.cli import support
from tests.server.cli.support import clean_environment
from tests.support.doubles.manners import MANNERS
from tests.support.doubles.messages import Body, ModelRequest
from tests.support.doubles.server import ProviderDouble, serve_double
from tests.support.forking import forked_command_line

GOAL = "Find the stale records and note what they are."
PLAN: Body = {
    "todoList": [
        {"id": "find", "description": "Find the records", "requiredTools": ["find_records"]},
        {"id": "judge", "description": "Say which of them are stale", "stepType": "reasoning"},
        {"id": "note", "description": "Write it down", "requiredTools": ["write_note"]},
    ]
}
TOOLS = '''
"""Tools with a ledger: what is in it has happened."""

from pathlib import Path

import planwarden

LEDGER = Path(__file__).parent / "ledger"


def _keep(line: str) -> None:
    with LEDGER.open("a", encoding="utf-8") as file:
        file.write(line + "\\n")


@planwarden.tool(risk="read", effect="read")
def find_records(topic: str) -> dict[str, object]:
    """Find records about a topic."""
    _keep(f"find_records {topic}")
    return {"ids": [3, 14, 15]}


@planwarden.tool(risk="read", effect="effect")
def write_note(text: str) -> str:
    """Write a note."""
    _keep(f"write_note {text}")
    return "written"
'''
DONE = ["find_records the topic", "write_note the text"]
"""The ledger afterwards: once each, with the arguments that a double makes up."""


@dataclass(frozen=True)
class Way:
    title: str
    wire: str
    in_text: bool = False

    @property
    def name(self) -> str:
        return "text" if self.in_text else self.wire


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way("Anthropic Messages", "anthropic"),
        Way("OpenAI Chat Completions", "openai-chat"),
        Way("OpenAI Responses", "openai-responses"),
        Way("Gemini", "google"),
        Way("Text mode, over OpenAI Chat Completions", "openai-chat", in_text=True),
    )
}


@dataclass(frozen=True)
class Finished:
    environment: dict[str, str]
    """What the operator set, without port and key."""
    code: int
    out: str
    err: str
    ledger: list[str]
    asked: list[ModelRequest]
    """Requests that the double had."""

    @property
    def transcript(self) -> str:
        """What was printed, without what differs from run to run."""
        return re.sub(r"(?<=show )[0-9a-f]{8}\b", "THREAD", self.out).strip()


def make_home(folder: Path) -> Path:
    return support.make_home(folder, TOOLS)


async def run_goal(way: Way, home: Path) -> Finished:
    """Plan for the goal and run the plan, with an obedient model that speaks the provider's wire format."""
    async with obedient(way) as double:
        environment = environment_for(way, double)
        code, out, err = await run_command(home, environment, "run-goal", GOAL)
        return finished(double, environment, home, code, out, err)


def obedient(way: Way) -> AbstractAsyncContextManager[ProviderDouble]:
    return serve_double(way.wire, MANNERS["obedient"], plan=PLAN)


def environment_for(way: Way, double: ProviderDouble) -> dict[str, str]:
    """What an operator sets to use the double."""
    in_text = {"PLANWARDEN_MODEL_MODE": "text"} if way.in_text else {}
    return {"PLANWARDEN_MODEL": double.wire.setting, **double.environment, **in_text}


def finished(
    double: ProviderDouble, environment: Mapping[str, str], home: Path, code: int, out: str, err: str
) -> Finished:
    shown = {name: value.replace(double.key, "KEY") for name, value in environment.items()}
    shown["PLANWARDEN_MODEL_URL"] = double.url.replace(str(double.port), "PORT")
    return Finished(shown, code, out, err, ledger_of(home), double.requests)


async def run_command(home: Path, environment: Mapping[str, str], *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command; the home is named by the environment, as operators do it."""
    done = await anyio.run_process(
        forked_command_line(*words),
        env=clean_environment({"PLANWARDEN_HOME": str(home), **environment}),
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def ledger_of(home: Path) -> list[str]:
    path = home / "ledger"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
