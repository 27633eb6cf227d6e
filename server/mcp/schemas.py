"""JSON Schemas of the MCP tools: of their arguments, short enough for every context window, and of their results.

The server checks arguments against the input schemas that callers see, except `options` and `plan`, which have checks
of their own with better messages. Output schemas also admit `{"error": ...}`, because some clients check even results
that are errors. Output schemas require nothing, because clients cache them across versions of the server.
"""

from typing import Any, cast

from planwarden.agent.core.plan.plan_input import call_schema, plan_form, plan_schema

JsonSchema = dict[str, Any]


def _object(**properties: JsonSchema) -> JsonSchema:
    return {"type": "object", "properties": properties}


def _array(items: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": items}


STRING: JsonSchema = {"type": "string"}
INTEGER: JsonSchema = {"type": "integer"}
NUMBER: JsonSchema = {"type": "number"}
OBJECT: JsonSchema = {"type": "object"}
ANY_LIST: JsonSchema = {"type": "array"}
STRINGS = _array(STRING)
WAIT: JsonSchema = {"type": "number", "minimum": 0, "maximum": 300, "description": "Default 25"}

OPTIONS = _object(
    waitSeconds={**WAIT, "description": "Until the answer says running; default 25"},
    maxIterations={**INTEGER, "description": "Answers of a model in one step; default 5"},
    taefMaxRetries={**INTEGER, "description": "Reminders to call the required tools; default 2"},
    toolMode={
        "type": "string",
        "enum": ["strict", "flexible"],
        "description": "strict (default): a step may call only its requiredTools; flexible: all tools",
    },
    synthesize={"type": "boolean", "description": "Ask for a final text; default only in run_goal"},
    rehearse={
        "type": "boolean",
        "description": "Change nothing and ask nobody: only reads are called, the rest is listed",
    },
    review={"enum": ["person"], "description": "A person approves the plan before its first step"},
    budgets=_object(modelTokens=INTEGER, toolCalls=INTEGER, seconds=NUMBER),
    prompts=_object(planning=STRING, execution=STRING, synthesis=STRING),
)

PLAN: JsonSchema = plan_schema(described=True)

DECISION: JsonSchema = {
    **_object(
        approved={"type": "boolean"},
        reason=STRING,
        modifiedArgs={"type": "object", "description": "All arguments, edited"},
        content={"type": "object", "description": "Answer that fits answerSchema"},
    ),
    "additionalProperties": False,
}

THREAD: JsonSchema = {"threadId": STRING}
QUESTION: JsonSchema = {"threadId": STRING, "suspensionId": STRING}
PAGE: JsonSchema = {"limit": {"type": "integer", "minimum": 1, "maximum": 100}, "cursor": STRING}
RUN: JsonSchema = {
    "threadId": {"type": "string", "description": "To continue a thread; default: a new one"},
    "key": {"type": "string", "description": "Idempotency key: sent again, it starts nothing new"},
    "options": {"type": "object", "description": "As in execute_plan"},
}

CALLER_ANSWER = _object(
    **cast("JsonSchema", plan_form()["properties"]),
    toolCalls=_array(call_schema()),
    content=STRING,
    revise=_array(OBJECT),
)
"""The form of `content` in every answer of the caller. It says which texts are read as JSON, and checks nothing."""

TOOLS_OUT = _object(
    tools=_array(_object(name=STRING, description=STRING)), total=INTEGER, nextCursor=STRING, error=OBJECT
)

SCHEMAS_OUT = _object(
    tools=_array(
        _object(
            name=STRING,
            description=STRING,
            inputSchema=OBJECT,
            outputSchema=OBJECT,
            seenResult={"description": "Shape of its last result, where it has no outputSchema"},
            asks=STRING,
            risk=STRING,
        )
    ),
    unknown=STRINGS,
    error=OBJECT,
)

_SUSPENSIONS = _array(
    _object(
        suspensionId=STRING,
        threadId=STRING,
        stepId=STRING,
        addressee={"enum": ["human", "caller"]},
        kind=STRING,
        message=STRING,
        toolCall=OBJECT,
        risk=STRING,
        needs=STRING,
        instructions=STRING,
        results=STRING,
        prompt=STRING,
        tools=ANY_LIST,
        answerSchema=OBJECT,
        howToAnswer=OBJECT,
    )
)

SUSPENSIONS_OUT = _object(suspensions=_SUSPENSIONS, total=INTEGER, nextCursor=STRING, unfinished=ANY_LIST, error=OBJECT)

_ENDS = ["completed", "rejected", "failed", "incomplete", "cancelled", "rehearsed"]
EXECUTION_OUT = _object(
    threadId=STRING,
    executionId=STRING,
    status={"enum": ["planned", "running", "suspended", *_ENDS]},
    goal=STRING,
    output=STRING,
    error=OBJECT,
    steps=_array(_object(id=STRING, status=STRING, result={}, actualToolCalls=ANY_LIST)),
    revised=OBJECT,
    suspensions=_SUSPENSIONS,
    usage=OBJECT,
    observations=ANY_LIST,
    nextAction=STRING,
    awaiting={"enum": ["human", "caller"]},
)


def build_arguments_schema(properties: JsonSchema, required: tuple[str, ...]) -> JsonSchema:
    """Return the input schema of a tool; it refuses keys that are not in `properties`."""
    schema = {**_object(**properties), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema
