"""The tools of a host itself, such as `claude-code/Bash`, as far as planwarden is asked about them.

Their names have a `/`, which no name in the catalogue can have, so plans and models cannot name them. Only the guard
starts executions with such a call. It does nothing when it runs: that it ran is the record that a person, a grant or a
rule let the identical call of the host pass.
"""

import re
from functools import lru_cache

from pydantic import JsonValue

from planwarden.agent.common.schema import Schema
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.tools.base import Tool, define

ANSWER_WITHIN_S = 24 * 3600.0
PASS_S = 3600.0
"""How long after a decision the host may make the call."""
_NAME = re.compile(r"(?P<host>[a-z][a-z-]{0,31})/[A-Za-z0-9_.:-]{1,160}")
_SCHEMA: dict[str, JsonValue] = {"type": "object"}


async def _let_pass(arguments: dict[str, JsonValue], context: CallContext) -> object:
    return {"passes": "once", "withinSeconds": PASS_S}


@lru_cache(maxsize=256)
def find_host_tool(name: str) -> Tool | None:
    """Returns the tool of a host; None for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    definition = ToolDefinition(
        name=name,
        description=f"A call that {found['host']} makes itself.\n\nAn approval lets the identical call pass once, "
        "within an hour.",
        input_schema=_SCHEMA,
        risk="dangerous",
        effect="idempotent",
        source="builtin",
        answer_within_s=ANSWER_WITHIN_S,
    )
    return Tool(define(definition), _let_pass, schema=Schema(_SCHEMA))
