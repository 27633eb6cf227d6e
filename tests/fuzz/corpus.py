"""Real messages, from which inputs are made: plans, calls of every MCP tool, answers, and other requests."""

from typing import Any

from mcp.types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from tests.support.wardens import model_step, plan, tool_step

Document = dict[str, Any]

FORM: Document = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[A-Za-z ]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colour": {"type": "string", "enum": ["red", "green"]},
        "news": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
    },
    "required": ["name"],
}
ASK_FORM = tool_step("form", "requestInput", {"message": "Who is it?", "form": FORM})
PLANS: tuple[Document, ...] = (
    plan(tool_step("a", "calculator", {"expression": "6 * (7 + 1)"})),
    plan(
        tool_step("find", "find", {"topic": "owls", "limit": 2}),
        tool_step("note", "note", {"text": {"$from": "find", "pointer": "/topic"}}, dependencies=["find"]),
    ),
    plan(
        tool_step("x", "find", {"topic": "x"}),
        tool_step("ask", "displayConfirmation", {"action": "Delete?", "details": {"$from": "x"}}, dependencies=["x"]),
    ),
    plan(
        tool_step("ask", "displayConfirmation", {"action": "Write it?", "details": [1, 2]}, confirms=["b"]),
        tool_step("b", "note", {"text": "y"}, onReject="stop"),
    ),
    plan(ASK_FORM, tool_step("c", "note", {"text": {"$from": "form", "pointer": "/content/name"}})),
    plan(tool_step("a", "send", {"to": "ann", "copies": 2, "urgent": True})),
    plan(tool_step("a", "erase", {"ids": [1, 2]})),
    plan(tool_step("a", "wait", {"seconds": 3600}), tool_step("b", "broken", {}, toolValidationMode="advisory")),
    plan(model_step("m", "find", expectedOutcome="ids", stepType="tool"), {"id": "r", "description": "think"}),
    {"steps": [{"id": "1", "description": "say it", "status": "completed", "result": "x"}]},
)
OPTIONS: Document = {
    "waitSeconds": 0.2,
    "maxIterations": 3,
    "taefMaxRetries": 1,
    "toolMode": "flexible",
    "synthesize": True,
    "budgets": {"modelTokens": 1000, "toolCalls": 5, "seconds": 60},
    "prompts": {"planning": "plan it", "execution": "do it", "synthesis": "sum it up"},
}
APPROVE: Document = {"approved": True}
DECISIONS: tuple[Document, ...] = (
    APPROVE,
    {"approved": False, "reason": "too early"},
    {"approved": True, "modifiedArgs": {"to": "bob", "copies": 1}},
    {"content": {"name": "Ada", "age": 36, "colour": "red", "tags": ["a"]}},
    {"content": {"happened": True, "result": 1}},
)
CONTENTS: tuple[Document, ...] = (
    {"toolCalls": [{"toolName": "find", "arguments": {"topic": "owls"}}]},
    {"content": "It is done.", "toolCalls": []},
    {"content": '---JSON_OUTPUT_START---\n{"toolCalls": []}\n---JSON_OUTPUT_END---'},
    PLANS[0],
    {"name": "Ada", "age": 36},
)
FORM_ANSWERS: tuple[Document, ...] = (
    {"decision": {"action": "accept", "content": {"decision": "approve"}}},
    {"decision": {"action": "accept", "content": {"name": "Ada", "age": 36, "news": True}}},
    {"decision": {"action": "decline"}},
    {"decision": {"action": "cancel"}},
)
CAPABILITIES: tuple[Document, ...] = (
    {},
    {"elicitation": {"form": {}}},
    {"elicitation": {"form": {}, "url": {}}},
    {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}},
)
VERSIONS = (LATEST_MODERN_VERSION, LATEST_HANDSHAKE_VERSION, "2024-11-05", "2099-01-01", "", "latest")


def tool_calls(thread_id: str, suspension_id: str) -> tuple[tuple[str, Document], ...]:
    """A correct call of each MCP tool, with these ids."""
    ids: Document = {"threadId": thread_id, "suspensionId": suspension_id}
    return (
        ("search_tools", {"query": "calculate", "limit": 5}),
        ("search_tools", {"cursor": "20"}),
        ("get_tool_schemas", {"names": ["calculator", "nope"]}),
        ("create_plan", {"goal": "owls", "options": OPTIONS}),
        ("run_goal", {"goal": "owls", "threadId": thread_id, "options": OPTIONS}),
        ("run_goal", {"goal": "count to three"}),
        ("execute_plan", {"plan": PLANS[1], "goal": "owls", "options": OPTIONS}),
        ("execute_plan", {"threadId": thread_id}),
        ("run_plan", {"name": "letter", "inputs": {"to": "ann"}, "threadId": thread_id, "options": OPTIONS}),
        ("retry_execution", {"threadId": thread_id, "fromStep": "a", "inputs": {}, "plan": PLANS[1], "waitSeconds": 0}),
        ("ask_person", {"message": "Which seat?", "form": {"type": "object"}, "details": {"row": 7}, "waitSeconds": 0}),
        ("get_execution", {"threadId": thread_id, "observationsAfter": 0}),
        ("list_suspensions", {"threadId": thread_id, "addressee": "human", "limit": 5}),
        ("list_suspensions", {"cursor": "x"}),
        ("submit_answer", {**ids, "content": CONTENTS[0], "waitSeconds": 0.1}),
        ("resume_execution", {**ids, "decision": DECISIONS[1], "waitSeconds": 0.1}),
        ("app_decide", {**ids, "nonce": "abc", "content": {"decision": "approve"}, "waitSeconds": 0}),
        ("cancel_execution", {"threadId": thread_id, "reason": "enough"}),
    )


def requests(thread_id: str, suspension_id: str) -> tuple[tuple[str, Document], ...]:
    """A correct request of each MCP method, with these ids."""
    uri = f"planwarden://threads/{thread_id}"
    return (
        ("initialize", {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": CLIENT}),
        ("server/discover", {}),
        ("ping", {}),
        ("tools/list", {"cursor": "x"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": uri}),
        ("resources/read", {"uri": "planwarden://tools/calculator"}),
        ("resources/subscribe", {"uri": uri}),
        ("resources/unsubscribe", {"uri": uri}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "run_goal", "arguments": {"goal": "owls"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "run_goal"}, "argument": ARGUMENT}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": uri}, "argument": ARGUMENT}),
        ("tasks/get", {"taskId": thread_id}),
        ("tasks/update", {"taskId": thread_id, "inputResponses": {suspension_id: FORM_ANSWERS[0]["decision"]}}),
        ("tasks/cancel", {"taskId": thread_id}),
        ("logging/setLevel", {"level": "debug"}),
        ("notifications/initialized", {}),
        ("notifications/cancelled", {"requestId": 1, "reason": "x"}),
        ("notifications/progress", {"progressToken": 1, "progress": 0.5}),
        *(("tools/call", {"name": name, "arguments": given}) for name, given in tool_calls(thread_id, suspension_id)),
    )


CLIENT: Document = {"name": "fuzz", "version": "1"}
ARGUMENT: Document = {"name": "goal", "value": "o"}
