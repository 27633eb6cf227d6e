"""How often planwarden asks: labelled calls through the guard, under the rules that `planwarden init` writes.

`corpus.tsv` was labelled before any rule was tried: *safe* calls need nobody, a person wants to see those to *ask*
about, and those that are *never* let through must not pass unasked. Half of the calls, by a digest, were held out while
the rules were written. Nothing of the corpus runs; `/home/ann` need not exist.
"""

import hashlib
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from planwarden.server.guard.calls import GuardedCall, build_call
from planwarden.server.guard.judging import Judge, build_judge
from planwarden.server.settings.configuration import SETTINGS_FILE, load_settings

CORPUS = Path(__file__).parent / "corpus.tsv"
PROJECT = "/home/ann/shop"
MAIN_ARGUMENTS = {"Bash": "command", "WebFetch": "url", "WebSearch": "query", "Grep": "pattern", "Glob": "pattern"}
"""The argument that the corpus gives of a tool; `file_path` of every other one of the host."""
Half = Literal["tuned", "held out"]


class LabelledCall(msgspec.Struct, frozen=True):
    label: str
    call: GuardedCall
    half: Half
    text: str


def read_corpus() -> list[LabelledCall]:
    calls: list[LabelledCall] = []
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        label, tool, text = line.split("\t")
        arguments = text if tool.startswith("mcp__") else {MAIN_ARGUMENTS.get(tool, "file_path"): text}
        half: Half = "held out" if hashlib.sha256(line.encode()).digest()[0] % 2 else "tuned"
        calls.append(LabelledCall(label, build_call("claude-code", tool, arguments, PROJECT), half, f"{tool} {text}"))
    return calls


def write_home(home: Path, *, names_project: bool) -> None:
    """Write the settings as `planwarden init` does; with the commented rule for a project's files, if asked for."""
    text = (files("planwarden.server.cli.templates") / SETTINGS_FILE).read_text(encoding="utf-8")
    if names_project:
        before, mark, rule = text.partition("# [[rules]]  # the files of your project\n")
        assert mark, "the starter has no rule for a project's files"
        lines = rule.split("\n\n", 1)
        text = before + "[[rules]]\n" + lines[0].replace("# ", "") + "\n\n" + lines[1]
    (home / SETTINGS_FILE).write_text(text.replace('python = ["tools.py"]', ""), encoding="utf-8")


def judge_corpus(home: Path, *, names_project: bool) -> list[tuple[LabelledCall, str]]:
    """Return each call with what the guard answers at once: `pass`, `ask` or `deny`."""
    write_home(home, names_project=names_project)
    judge = build_judge(load_settings(home=home, environment={"HOME": "/home/ann"}))
    return [(labelled, _judge(judge, labelled.call)) for labelled in read_corpus()]


def _judge(judge: Judge, call: GuardedCall) -> str:
    verdict = judge.judge(call)
    return "ask" if verdict is None else "deny" if verdict.then == "deny" else "pass"


def count(answers: list[tuple[LabelledCall, str]], half: Half) -> dict[str, dict[str, int]]:
    """Return for each label how many calls there are, and how many of them pass, ask and are denied."""
    table: dict[str, dict[str, int]] = {}
    for label in ("safe", "ask", "never"):
        counts = Counter(answer for call, answer in answers if (call.label, call.half) == (label, half))
        table[label] = {"calls": counts.total(), **{answer: counts[answer] for answer in ("pass", "ask", "deny")}}
    return table
