"""An inbox with questions of every kind on a real port, for tests in a browser and for the pictures in docs."""

import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.environment import new_id
from planwarden.agent.runtime.new_execution import NewExecution, ParsedPlan, PreparedThread
from planwarden.server.api.service import Service
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.inbox_port import build_pairing_url
from planwarden.server.inbox.site import InboxSite
from planwarden.server.inbox.web_server import serve_app
from planwarden.tools.base import Tool, define
from tests.kit import (
    Authority,
    Decision,
    Ledger,
    OperatorPolicy,
    Registry,
    Requester,
    Settings,
    build_constant_call,
    decide,
    ev,
    plan,
    tool_step,
    warden,
)

ANN = Authority(assurance="human", channel="inbox", principal="ann")


def build_office_tools(ledger: Ledger) -> list[object]:
    """Returns tools of an office, which write one line into the ledger for each effect."""

    @planwarden.tool(risk="read", effect="read")
    async def crm_find(older_than_days: int) -> dict[str, JsonValue]:
        """Find records that nobody has touched for a while."""
        return {"ids": [4021, 4077, 4130, 4188], "names": ["Acme Ltd", "Borealis", "Cobalt & Sons", "Dune"]}

    @planwarden.tool
    async def crm_delete(ids: list[int], reason: str = "stale", notify: bool = False) -> dict[str, JsonValue]:
        """Delete records permanently."""
        ledger.lines.append(f"crm_delete {ids} {reason} {notify}")
        return {"deleted": len(ids)}

    @planwarden.tool
    async def send_mail(
        to: str, subject: str, body: str, priority: Literal["low", "normal", "high"] = "normal", copies: int = 1
    ) -> str:
        """Send a letter to a customer."""
        ledger.lines.append(f"send_mail {to} {subject} {priority} {copies}")
        return "sent"

    @planwarden.tool(risk="critical")
    async def deploy(service: str, version: str, regions: list[str]) -> str:
        """Put a version into production."""
        ledger.lines.append(f"deploy {service} {version}")
        return "deployed"

    @planwarden.tool
    async def pay_invoice(invoice: str, amount: float, currency: str, account: str) -> str:
        """Pay an invoice."""
        ledger.lines.append(f"pay_invoice {invoice} {amount}")
        return "paid"

    return [crm_find, crm_delete, send_mail, deploy, pay_invoice]


BODY = (
    "Dear customer,\n\nyour account has been idle for a year.\n"
    "It will be closed on 1 December unless you log in.\n\nKind regards"
)
FORM: dict[str, JsonValue] = {
    "type": "object",
    "required": ["region", "count"],
    "properties": {
        "region": {"type": "string", "enum": ["eu-west", "us-east", "ap-south"], "description": "Where it goes first"},
        "count": {"type": "integer", "minimum": 1, "maximum": 50, "description": "How many machines"},
        "dry_run": {"type": "boolean", "description": "Only show what would happen"},
        "note": {"type": "string", "description": "For the change log"},
    },
}

CLEAN_UP = (
    tool_step("find", "crm_find", {"older_than_days": 400}),
    tool_step(
        "delete", "crm_delete", {"ids": {"$from": "find", "pointer": "/ids"}}, description="Delete the stale records"
    ),
)
LETTER = tool_step(
    "mail",
    "send_mail",
    {"to": "team@acme.example", "subject": "Your account will be closed", "body": BODY},
    description="Tell the customer before the account is closed",
)
PAY = tool_step(
    "pay", "pay_invoice", {"invoice": "2026-1187", "amount": 1840.5, "currency": "EUR", "account": "DE89 3704"}
)
DEPLOY = tool_step(
    "ship", "deploy", {"service": "checkout", "version": "4.12.0", "regions": ["eu-west-1", "us-east-1"]}
)
ASK = tool_step("ask", "requestInput", {"message": "Where should the new workers go?", "form": FORM})
HOSTILE = tool_step(
    "ask",
    "displayConfirmation",
    {
        "action": "All done. \u202e[Approve]\u202c\u200b Press <b>Approve</b> to finish.\n\n\nTool: nothing",
        "details": {"rows": 12},
    },
)


async def call_through_gate(
    service: Service, arguments: dict[str, JsonValue], *, host: str = "Claude Code", name: str = "write_file"
) -> planwarden.Execution:
    """Starts what a gate starts for a call of a host, and returns its execution once it asks a person."""
    tools = [
        Tool(
            define(
                ToolDefinition(name=f"files_{tool}", description="", input_schema={"type": "object"}, source="files")
            ),
            build_constant_call({"content": [{"type": "text", "text": "Successfully wrote to the file."}]}),
        )
        for tool in ("write_file", "move_file")
    ]
    assert isinstance(service.tools, Registry)
    service.tools.replace_group("files", tools)
    call = PlannedCall(tool_name=f"files_{name}", arguments=arguments)
    about = f"{host} calls {name} of server 'files'."
    started = await service.create(
        NewExecution(
            thread=PreparedThread(f"gate-{new_id()}", ev.Options()),
            requester=Requester("local", host=host),
            goal=f"{name} of server 'files', which is `npx -y @modelcontextprotocol/server-filesystem /data`",
            parsed=ParsedPlan(
                Plan(
                    steps=(
                        PlanStep(
                            step_id="call",
                            description=about,
                            step_type="tool",
                            required_tools=(call.tool_name,),
                            tool_calls=(call,),
                        ),
                    )
                )
            ),
        )
    )
    return service.build_view(await service.wait(started, 60))


@dataclass
class InboxScene:
    warden: planwarden.Warden
    site: InboxSite
    url: str
    ledger: Ledger

    async def make_link(self, name: str = "ann", target: str = "/inbox") -> str:
        codes = await self.site.access().make_codes(name, "terminal")
        return build_pairing_url(self.url, codes.link, target)

    async def run_to_question(self, *steps: dict[str, JsonValue], goal: str | None = None) -> str:
        execution = await self.warden.execute_plan(plan(*steps), goal=goal)
        return execution.suspensions[0].suspension_id

    async def find_execution(self, suspension_id: str) -> str:
        row = await self.warden.service.store.find_suspension(suspension_id)
        assert row is not None
        return row.execution_id

    async def answer(self, suspension_id: str, decision: Decision, authority: Authority = ANN) -> str:
        row = await self.warden.service.store.find_suspension(suspension_id)
        assert row is not None
        place = (row.thread_id, suspension_id)
        await decide(self.warden.service, place, decision, authority)
        return row.execution_id

    async def ask_every_kind(self) -> dict[str, str]:
        return {
            "delete": await self.run_to_question(
                *CLEAN_UP, goal="Clean the CRM of records that nobody has touched for a year"
            ),
            "mail": await self.run_to_question(LETTER, goal="Close idle accounts"),
            "pay": await self.run_to_question(PAY),
            "deploy": await self.run_to_question(DEPLOY, goal="Release checkout 4.12"),
            "form": await self.run_to_question(ASK, goal="Release checkout 4.12"),
            "hostile": await self.run_to_question(HOSTILE),
        }


@asynccontextmanager
async def open_scene(tools: Sequence[object] = (), home: Path = Path("/nonexistent")) -> AsyncGenerator[InboxScene]:
    """Runs an inbox on a free loopback port while the block runs; the saved plans are those of the home."""
    ledger = Ledger()
    settings = Settings(home=home, policy=OperatorPolicy(quorum=2))
    listener = socket.create_server(("127.0.0.1", 0))
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    async with warden(tools=[*build_office_tools(ledger), *tools], settings=settings) as made:
        site = InboxSite(service=lambda: made.service, settings=Settings(home=home))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_app, build_inbox_app(site, lambda: {host}), listener)
            yield InboxScene(made, site, f"http://{host}/inbox", ledger)
            tasks.cancel_scope.cancel()
