"""JSON Schemas of the MCP tools: their arguments, short enough for every context window, and their results.

Callers see the input schemas, and arguments are checked against them, except `options` and `plan`, which have their own
check with better messages. Output schemas admit an error's `{"error": ...}` too, because some clients check results
that are errors. They require nothing, because clients cache them across versions of the server.
"""

from typing import Any, cast

from planwarden.agent.core.plan.plan_input import call_schema, plan_form, plan_schema

JsonSchema = dict[str, Any]

STRING: JsonSchema = {"type": "string"}
INTEGER: JsonSchema = {"type": "integer"}
NUMBER: JsonSchema = {"type": "number"}
OBJECT: JsonSchema = {"type": "object"}
STRINGS: JsonSchema = {"type": "array", "items": STRING}
WAIT: JsonSchema = {"type": "number", "minimum": 0, "maximum": 300, "description": "Default 25"}

OPTIONS: JsonSchema = {
    "type": "object",
    "properties": {
        "waitSeconds": {**WAIT, "description": "Until the answer says running; default 25"},
        "maxIterations": {**INTEGER, "description": "Answers of a model in one step; default 5"},
        "taefMaxRetries": {**INTEGER, "description": "Reminders to call the required tools; default 2"},
        "toolMode": {
            "type": "string",
            "enum": ["strict", "flexible"],
            "description": "strict (default): a step may call only its requiredTools; flexible: all tools",
        },
        "synthesize": {"type": "boolean", "description": "Ask for a final text; default only in run_goal"},
        "rehearse": {
            "type": "boolean",
            "description": "Change nothing and ask nobody: only reads are called, the rest is listed",
        },
        "review": {"enum": ["person"], "description": "A person approves the plan before its first step"},
        "budgets": {"type": "object", "properties": {"modelTokens": INTEGER, "toolCalls": INTEGER, "seconds": NUMBER}},
        "prompts": {"type": "object", "properties": {"planning": STRING, "execution": STRING, "synthesis": STRING}},
    },
}

SAME_OPTIONS: JsonSchema = {"type": "object", "description": "As of execute_plan"}

PLAN: JsonSchema = plan_schema(described=True)

DECISION: JsonSchema = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": STRING,
        "modifiedArgs": {"type": "object", "description": "All arguments, edited"},
        "content": {"type": "object", "description": "Answer that fits answerSchema"},
    },
    "additionalProperties": False,
}

THREAD: JsonSchema = {"threadId": STRING}
QUESTION: JsonSchema = {"threadId": STRING, "suspensionId": STRING}
PAGE: JsonSchema = {"limit": {"type": "integer", "minimum": 1, "maximum": 100}, "cursor": STRING}
RUN: JsonSchema = {
    "threadId": {"type": "string", "description": "To continue a thread; default: a new one"},
    "key": {"type": "string", "description": "Idempotency key: sent again, it starts nothing new"},
    "options": SAME_OPTIONS,
}

CALLER_ANSWER: JsonSchema = {
    "type": "object",
    "properties": {
        **cast("JsonSchema", plan_form()["properties"]),
        "toolCalls": {"type": "array", "items": call_schema()},
        "content": STRING,
        "revise": {"type": "array", "items": OBJECT},
    },
}
"""The form of `content`, whatever the caller's question asks for; to read text in it, not to check it."""

TOOLS_OUT: JsonSchema = {
    "type": "object",
    "properties": {
        "tools": {"type": "array", "items": {"type": "object", "properties": {"name": STRING, "description": STRING}}},
        "total": INTEGER,
        "nextCursor": STRING,
        "error": OBJECT,
    },
}

SCHEMAS_OUT: JsonSchema = {
    "type": "object",
    "properties": {
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": STRING,
                    "description": STRING,
                    "inputSchema": OBJECT,
                    "outputSchema": OBJECT,
                    "seenResult": {"description": "Shape of its last result, where it has no outputSchema"},
                    "asks": STRING,
                    "risk": STRING,
                },
            },
        },
        "unknown": STRINGS,
        "error": OBJECT,
    },
}

_SUSPENSIONS: JsonSchema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "suspensionId": STRING,
            "threadId": STRING,
            "stepId": STRING,
            "addressee": {"enum": ["human", "caller"]},
            "kind": STRING,
            "message": STRING,
            "toolCall": OBJECT,
            "risk": STRING,
            "needs": STRING,
            "instructions": STRING,
            "results": STRING,
            "prompt": STRING,
            "tools": {"type": "array"},
            "answerSchema": OBJECT,
            "howToAnswer": OBJECT,
        },
    },
}

SUSPENSIONS_OUT: JsonSchema = {
    "type": "object",
    "properties": {"suspensions": _SUSPENSIONS, "total": INTEGER, "nextCursor": STRING, "error": OBJECT},
}

EXECUTION_OUT: JsonSchema = {
    "type": "object",
    "properties": {
        "threadId": STRING,
        "executionId": STRING,
        "status": {
            "enum": [
                "planned",
                "running",
                "suspended",
                "completed",
                "rejected",
                "failed",
                "incomplete",
                "cancelled",
                "rehearsed",
            ]
        },
        "goal": STRING,
        "output": STRING,
        "error": OBJECT,
        "steps": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": STRING, "status": STRING, "result": {}, "actualToolCalls": {"type": "array"}},
            },
        },
        "revised": OBJECT,
        "suspensions": _SUSPENSIONS,
        "usage": OBJECT,
        "observations": {"type": "array"},
        "nextAction": STRING,
        "awaiting": {"enum": ["human", "caller"]},
    },
}


def build_arguments_schema(properties: JsonSchema, required: tuple[str, ...]) -> JsonSchema:
    """Return the input schema of a tool; it refuses keys that are not listed."""
    schema: JsonSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema
