"""One of the processes that race for business keys and budgets: `python -m tests.race.once_worker FOLDER STORE`.

It reads one JSON command a line, `["race", ROUND]`, lets sixteen tasks run plans at once, and answers with how often
each status was the end. Tools write their effects into a file that all processes share.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import JsonValue

import planwarden
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.rules import build_rule_book
from planwarden.storage.location import read_location
from planwarden.storage.opening import open_store
from tests.crash.worker import say
from tests.support.json_lines import append_line
from tests.support.wardens import plan, tool_step

TASKS = 16
LIMIT = 500
BUDGET: dict[str, JsonValue] = {"sum": "amount", "limit": LIMIT, "per": "day"}


def settings(home: Path) -> Settings:
    """`refund` happens once per payment; `spend` passes by a rule with a budget, one for each round."""
    rules = [
        {"tool": "spend", "when": {"round": {"in": [number]}}, "then": "allow", "budget": [BUDGET]}
        for number in range(50)
    ]
    book, facts = build_rule_book(rules)
    once = {"refund": OnceRule(("/payment_id",), 86_400.0)}
    return Settings(home=home, policy=OperatorPolicy(rules=book, once=once, facts={"rules": facts}))


async def serve(folder: Path, url: str) -> None:
    @planwarden.tool(risk="read", effect="effect")
    async def refund(payment_id: str) -> str:
        """Pay money back."""
        append_line(folder / "effects", ["refund", payment_id, 1])
        return payment_id

    @planwarden.tool()
    async def spend(round: int, amount: float) -> float:
        """Pay."""
        append_line(folder / "effects", ["spend", str(round), amount])
        return amount

    async def run(w: planwarden.Warden, ended: Counter[str], *steps: dict[str, JsonValue]) -> None:
        for step in steps:
            done = await w.execute_plan(plan(step), wait_seconds=300)
            ended[f"{done.error.code if done.error else done.status}"] += 1

    async with open_store(read_location(url)) as store:
        warden = planwarden.Warden(settings=settings(folder), model=CallerModel(), tools=[refund, spend], store=store)
        async with warden as w:
            say(["ready"])
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                _, number = json.loads(line)
                ended = Counter[str]()
                async with anyio.create_task_group() as tasks:
                    for task in range(TASKS):
                        once = tool_step("a", "refund", {"payment_id": f"p-{number}-{task % 2}"})
                        paid = tool_step("a", "spend", {"round": number, "amount": 100})
                        tasks.start_soon(run, w, ended, *((once, paid) if task % 3 else (paid, once)))
                say([dict(ended)])


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]), sys.argv[2])
