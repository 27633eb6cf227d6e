"""What models read and write: prompts with 10 to 1,000 tools, and whole conversations of a calling model.

Planning and a tool step are compared with all schemas in every prompt. Tokens are characters / 4, as everywhere in this
project. `recall` is the share of the written queries whose right tool is among the first 20 of the ranked list.
Conversations are those of `benchmarks.conversation`. Run as `python -m benchmarks.tokens`; writes results/tokens.json,
and the tables of conversations in README.md.
"""

import asyncio
import json
from pathlib import Path

from msgspec.structs import replace

from benchmarks.catalogue import QUERIES, catalogue, schema_chars
from benchmarks.conversation import Conversation, measure
from benchmarks.report import conversations_section, replace_section
from planwarden.agent.core.execution.events import ExecutionCreated, PlanAccepted, StepStarted
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Plan, PlanStep
from planwarden.agent.core.prompts import Prompt, build_planning_prompt, build_step_prompt
from planwarden.agent.runtime.transaction_builder import choose_tools
from planwarden.server.views.encoding import to_json
from planwarden.server.views.tools import build_tool_view
from planwarden.tools.registry import Registry

SIZES = (10, 50, 200, 1_000)
GOAL = "Find the contacts in the CRM that nobody has touched for a year, ask me, and delete them."
RESULT = Path(__file__).parent / "results" / "tokens.json"
README = Path(__file__).parent / "README.md"


def tokens(text: str) -> int:
    return len(text) // 4


def planning(registry: Registry) -> Prompt:
    execution = apply(new_execution("e", "t", "local"), ExecutionCreated(goal=GOAL), 0.0)
    return build_planning_prompt(execution, choose_tools(registry, GOAL), len(registry.definitions()))


def one_step(tool_name: str) -> Prompt:
    step = PlanStep(step_id="s1", description="Find the contacts", step_type="tool", required_tools=(tool_name,))
    execution: ExecutionState = new_execution("e", "t", "local")
    for event in (ExecutionCreated(goal=GOAL), PlanAccepted(plan=Plan(steps=(step,))), StepStarted(step_id="s1")):
        execution = apply(execution, event, 0.0)
    return build_step_prompt(execution, execution.steps["s1"])


def with_schemas(prompt: Prompt, registry: Registry, names: list[str]) -> int:
    """Tokens of the prompt together with the full definitions of the named tools."""
    total = tokens(f"{prompt.instructions}\n\n{prompt.text}")
    for name in names:
        definition = registry.get(name)
        assert definition is not None
        view = to_json(build_tool_view(replace(definition, digest="")))
        kept = {key: view[key] for key in ("name", "description", "inputSchema")}
        total += tokens(json.dumps(kept, separators=(",", ":")))
    return total


def recall(registry: Registry, at: int) -> tuple[float, list[str]]:
    """Returns the share of the queries whose tool is found, and the queries where it is not."""
    known = [(query, name) for query, name in QUERIES if registry.get(name) is not None]
    lost = [query for query, name in known if name not in [d.name for d in registry.search(query, at)]]
    return (1 - len(lost) / len(known) if known else 1.0), lost


def main() -> None:
    rows: list[dict[str, float | int]] = []
    print(f"schemas of {schema_chars()} characters; tokens = characters / 4\n")
    print(
        f"{'tools':>6} {'planning':>9} {'all schemas':>12} {'tool step':>10} {'all schemas':>12} {'recall at 20':>13}"
    )
    for size in SIZES:
        registry = Registry(catalogue(size))
        names = [definition.name for definition in registry.definitions()]
        tool_name = "crm_search_contact"
        found, lost = recall(registry, 20)
        row = {
            "tools": size,
            "planning": with_schemas(planning(registry), registry, []),
            "planning_all_schemas": with_schemas(planning(registry), registry, names),
            "step": with_schemas(one_step(tool_name), registry, [tool_name]),
            "step_all_schemas": with_schemas(one_step(tool_name), registry, names),
            "recall_at_20": round(found, 3),
        }
        rows.append(row)
        print(
            f"{size:>6,} {row['planning']:>9,} {row['planning_all_schemas']:>12,} {row['step']:>10,} "
            f"{row['step_all_schemas']:>12,} {row['recall_at_20']:>13}"
        )
        for query in lost:
            print(f"       not found: {query}")
    conversations = asyncio.run(measure())
    for conversation in conversations:
        show(conversation)
    messages = [each.to_json() for each in conversations]
    found = {"schema_chars": schema_chars(), "rows": rows, "conversations": messages}
    RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    README.write_text(
        replace_section(README.read_text(encoding="utf-8"), conversations_section(messages)),
        encoding="utf-8",
    )


def show(conversation: Conversation) -> None:
    """Prints the conversation message by message."""
    limit = f", at most {conversation.limit:,}" if conversation.limit is not None else ""
    print(
        f"\n{conversation.way}, {conversation.steps} steps: {conversation.total:,} bytes in and out{limit}\n"
        f"{'':30} {'sent':>6} {'structured':>10} {'text':>6}"
    )
    for message in conversation.messages:
        print(f"{message.tool:>14} {message.about:<15} {message.sent:>6,} {message.structured:>10,} {message.text:>6,}")


if __name__ == "__main__":
    main()
