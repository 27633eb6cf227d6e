"""How real hosts offer a saved plan: as a command where they know prompts, and by the list in `run_plan` where not."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from tests.clients import hosts
from tests.clients.hosts import opencode
from tests.clients.stage import Stage
from tests.support.doubles.messages import ModelReply, ModelRequest

PLAN_NAME = "remind"
PLAN = """\
title: Remind a customer
inputs:
  properties:
    days: {type: integer, default: 14}
    customer: {type: string, description: Name}
  required: [customer]
todoList:
  - id: write
    description: Write to them
    toolCalls:
      - toolName: note
        arguments:
          text:
            $text: "Dear {customer}: {days} days"
            with:
              customer: {$from: inputs, pointer: /customer}
              days: {$from: inputs, pointer: /days}
"""
RUN: dict[str, Any] = {"name": PLAN_NAME, "inputs": {"customer": "Acme"}}
WRITTEN = "Dear Acme: 14 days"
ASKED = "Call planwarden's run_plan with"
"""The text of the prompt begins so."""
TEMPLATE = {"customer": "$1", "days": "$2"}


@dataclass(frozen=True)
class PlanHost:
    name: str
    version: str
    wire: hosts.HostWire
    prepare: Callable[..., hosts.Session]
    typed: tuple[str, ...]
    in_terminal: str
    """The same in the host's own screen, for the page."""
    asks_for: dict[str, str] | None
    """The arguments with which it gets the prompt; None for a host without prompts."""


@dataclass
class SeenRun:
    """What passed between the host and planwarden, and what its model read."""

    prompts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lists_prompts: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    statuses: list[str] = field(default_factory=list[str])
    read: str = ""
    """The newest request to the model that has a result, as JSON."""


def run_plan_in_host(host: PlanHost, stage: Stage) -> SeenRun:
    """Types the command and lets the model do what the prompt says. Raises `Failed` when the host does not end well."""
    plans = stage.home / "plans"
    plans.mkdir()
    (plans / f"{PLAN_NAME}.yaml").write_text(PLAN, encoding="utf-8")
    seen = SeenRun()

    def answer(request: ModelRequest) -> ModelReply:
        text = json.dumps(request.body, ensure_ascii=False)
        if hosts.count_results(host.wire, request) > 0:
            seen.read = text
            return ModelReply(text="Done.")
        # A host without prompts sends what was typed; its model knows the plan from the tool's description.
        is_told = ASKED in text if host.asks_for is not None else PLAN_NAME in text
        reply = hosts.build_call_reply(request, ("run_plan", RUN)) if is_told else None
        return reply or ModelReply(text="Nothing to do.")

    def prepare(stage: Stage, folder: Any, url: str) -> hosts.Session:
        return host.prepare(stage, folder, url, *host.typed)

    anyio.run(partial(hosts.run_session, host.wire, prepare, stage, answer))
    for speaker, message in stage.wire:
        if speaker != "client":
            continue
        match message.get("method"):
            case "prompts/list":
                seen.lists_prompts = True
            case "prompts/get":
                seen.prompts.append(message["params"].get("arguments", {}))
            case "tools/call":
                seen.calls.append(message["params"]["arguments"])
            case _:
                pass
    seen.statuses = [answer["status"] for answer in stage.results_of("run_plan")]
    return seen


GIVEN = {"customer": "Acme"}
COMMAND = f"/{PLAN_NAME} Acme"
IN_WORDS = f"Run the saved plan {PLAN_NAME} for Acme."
OPENCODE_COMMAND = f"planwarden:{PLAN_NAME}"
CLAUDE_COMMAND = f"/mcp__planwarden__{PLAN_NAME} Acme"
PLAN_HOSTS: tuple[PlanHost, ...] = (
    PlanHost(
        "Claude Code",
        hosts.CLAUDE_CODE.version,
        hosts.HostAnthropicWire(),
        hosts.claude_code,
        (CLAUDE_COMMAND,),
        CLAUDE_COMMAND,
        GIVEN,
    ),
    PlanHost(
        "Gemini CLI", hosts.GEMINI_CLI.version, hosts.HostGeminiWire(), hosts.gemini_cli, (COMMAND,), COMMAND, GIVEN
    ),
    PlanHost(
        "opencode",
        hosts.OPENCODE.version,
        hosts.HostChatWire(),
        opencode,
        ("--command", OPENCODE_COMMAND, "Acme"),
        f"/{OPENCODE_COMMAND} Acme",
        TEMPLATE,
    ),
    PlanHost("Codex CLI", hosts.CODEX.version, hosts.HostResponsesWire(), hosts.codex, (IN_WORDS,), IN_WORDS, None),
)
