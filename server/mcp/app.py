"""The view `ui://planwarden/suspension`, in which hosts with MCP Apps show a plan and its open questions.

A result for these hosts carries the plan and its open questions in `_meta`, which the host passes only to the view.
Until the plan is over, the view polls `app_show` for changes, if the host lets it call tools.

As in every channel, findings, facts and the asker's words are in separate fields (see `card`). A question that can be
answered in a form also has that form and a nonce. `app_decide` accepts a decision only with a nonce that was issued for
the same revision and principal. So a model that calls the tool itself decides nothing, even if its host ignores
`visibility: ["app"]`. The decision has the assurance `client` and no more, because the host draws the view and could
press its buttons (https://github.com/modelcontextprotocol/ext-apps/blob/main/specification/2026-01-26/apps.mdx).
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from importlib.resources import files

from mcp.server.apps import Apps, ResourceCsp, client_supports_apps
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from pydantic import JsonValue

from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.mcp.elicitation import build_form_schema, type_numbers_as_text
from planwarden.server.views.card import AGENT_CHARS, Card
from planwarden.server.views.escaping import escape_text, format_value, shorten_text
from planwarden.server.views.execution import Execution
from planwarden.server.views.plan_graph import PlanGraph, build_graph
from planwarden.server.views.question_text import format_facts, is_whole
from planwarden.server.views.status_text import build_outcome, build_title, describe_progress, describe_state
from planwarden.server.views.status_words import WORDS, Mark
from planwarden.server.views.suspension import Suspension
from planwarden.server.views.svg import draw_svg, read_style_sheet
from planwarden.server.views.tools import PAGE_ITEMS

URI = "ui://planwarden/suspension"
META_KEY = "planwarden/questions"
MAX_QUESTIONS = 10
"""The most questions that one result carries."""
QUESTION_CHARS = 4_000
"""The most characters of a question that can be answered in the view; a longer or shortened one is only shown."""
PLAN_KEY = "planwarden/plan"
WIDTH = 620
"""The width of the drawing in pixels, which fits into a conversation in most hosts."""
MAX_RESULTS = 12
"""The most results that the view shows; it shows those of the latest steps."""
RESULT_CHARS = 300
_MARKS_BY_PRIORITY: tuple[Mark, ...] = ("asks", "busy", "failed", "rejected")

client_shows_apps: ContextVar[bool] = ContextVar("client_shows_apps", default=False)
"""Whether the client that sent the current message draws apps; `record_app_support` sets it."""

NONCE_TTL_S = 3_600.0
_LABEL = b"planwarden app nonce/v1"


async def record_app_support(ctx: ServerRequestContext, call_next: CallNext) -> HandlerResult:
    """Set `client_shows_apps` for each message. This is a middleware, because the SDK gives `list_tools` no context."""
    reset = client_shows_apps.set(client_supports_apps(ctx))
    try:
        return await call_next(ctx)
    finally:
        client_shows_apps.reset(reset)


class Nonces:
    """The nonces that views send with decisions: one for each principal and revision of a question, valid for an hour.

    Each nonce is sealed with the secret key of its home, so every process of that home accepts it, even after a
    restart. No nonce is stored: the store takes only one decision about a question, and then the nonce is worthless.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hmac.digest(key, _LABEL, "sha256")

    def issue(self, principal: str, suspension: Suspension, now: float) -> str:
        """Return the nonce for this revision of the question."""
        parts = f"{int(now + NONCE_TTL_S)}.{suspension.digest}"
        return f"{parts}.{self._seal(principal, suspension.suspension_id, parts)}"

    def verify(self, principal: str, suspension_id: str, nonce: str, now: float) -> str | None:
        """Return the digest of the revision for which the nonce was issued; None if the nonce has expired, is forged,
        or belongs to another question or principal."""
        parts, _, seal = nonce.rpartition(".")
        expected = self._seal(principal, suspension_id, parts)
        if not hmac.compare_digest(seal.encode("utf-8", "surrogatepass"), expected.encode()):
            return None
        expires_at, _, digest = parts.partition(".")
        return digest if int(expires_at) > now else None

    def _seal(self, principal: str, suspension_id: str, parts: str) -> str:
        # JSON keeps the three values apart, even if they contain separators.
        sealed = json.dumps([principal, suspension_id, parts]).encode()
        return hmac.new(self._key, sealed, hashlib.sha256).hexdigest()


def build_suspension_app() -> Apps:
    """Return the extension with the view, whose content security policy forbids loading anything from elsewhere."""
    apps = Apps()
    apps.add_html_resource(
        URI,
        build_page(),
        name="suspension",
        title="A plan and its questions",
        description="Shows people the state of a plan and its open questions; takes decisions that fit into a form.",
        csp=ResourceCsp(connect_domains=[], resource_domains=[], frame_domains=[], base_uri_domains=[]),
        prefers_border=True,
    )
    return apps


def build_questions(view: Execution, nonces: Nonces, principal: str, now: float) -> list[JsonValue]:
    """Return the open questions that a person must answer, at most `MAX_QUESTIONS`, for the view, not the model."""
    suspensions = [suspension for suspension in view.suspensions if suspension.addressee == "human"][:MAX_QUESTIONS]
    return [_build_question(suspension, nonces, principal, now) for suspension in suspensions]


def _build_question(suspension: Suspension, nonces: Nonces, principal: str, now: float) -> JsonValue:
    card = suspension.card
    schema = _build_fields(card)
    facts = format_facts(card, is_form_shown=schema is not None)
    if not is_whole(card, is_form_shown=True) or sum(map(len, [*card.findings, *facts, card.words])) > QUESTION_CHARS:
        schema = None
    return {
        "threadId": suspension.thread_id,
        "suspensionId": suspension.suspension_id,
        "heading": card.heading,
        "place": card.where,
        "found": list[JsonValue](card.findings),
        "facts": list[JsonValue](facts),
        "label": card.label,
        "words": card.words,
        "schema": schema,
        "nonce": nonces.issue(principal, suspension, now) if schema is not None else None,
        "inboxUrl": suspension.how_to_answer.inbox_url,
        "command": suspension.how_to_answer.command,
    }


def _build_fields(card: Card) -> dict[str, JsonValue] | None:
    """Return the schema of the form; None if there is no form. Numbers become texts, which JavaScript does not round. A
    number with a default is required, because an empty field is not a number."""
    schema = build_form_schema(card)
    if schema is None:
        return None
    numbers = (name for name, field in schema["properties"].items() if field["type"] in ("number", "integer"))
    filled = [name for name in numbers if "default" in schema["properties"][name]]
    return type_numbers_as_text({**schema, "required": list(dict.fromkeys([*schema["required"], *filled]))})


@cache
def build_page() -> str:
    """Return the view as one HTML document; its content security policy admits only its own script and style, by
    their hashes."""
    text = files("planwarden.server.mcp").joinpath("app.html").read_text(encoding="utf-8")
    text = text.replace("%GRAPH%", read_style_sheet())
    style, script = (re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL) for name in ("style", "script"))
    sources = f"script-src {_list_hashes(script)}; style-src {_list_hashes(style)}"
    policy = f"default-src 'none'; {sources}; form-action 'none'; base-uri 'none'"
    return text.replace("%CSP%", policy)


def _list_hashes(parts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def build_plan(execution: ExecutionState, question_id: str | None = None) -> JsonValue:
    """Return the plan for the view, not for the model, and what became of the question `question_id`, if given."""
    graph = None if execution.plan is None else build_graph(execution.plan, execution)
    suspension = execution.suspensions.get(question_id or "")
    outcome = None if suspension is None else build_outcome(execution, suspension)
    return {
        "threadId": execution.thread_id,
        "seen": build_etag(execution),
        "title": build_title(execution),
        "state": f"The plan {describe_state(execution)}.",
        "tone": WORDS["execution"][execution.status].tone,
        "progress": describe_progress(execution),
        "place": "" if graph is None or execution.status == "completed" else _describe_place(graph),
        "graph": None if graph is None else draw_svg(graph, width=WIDTH),
        "results": list[JsonValue](_list_results(execution)),
        "words": shorten_text(execution.synthesis or "", AGENT_CHARS),
        "outcome": None if outcome is None else {"text": f"{outcome.verdict}. {outcome.text}", "tone": outcome.tone},
        "isOver": execution.is_finished,
    }


def build_etag(execution: ExecutionState) -> str:
    """Return an id of the execution's present version, by which the view notices changes; each event changes the id."""
    return f"{execution.execution_id}:{execution.version}"


def _describe_place(graph: PlanGraph) -> str:
    """Return a sentence about the first step that waits, or else runs, or else went wrong; empty if there is none."""
    for mark in _MARKS_BY_PRIORITY:
        for number, row in enumerate(graph.rows, 1):
            if row.mark == mark:
                count = len(graph.rows) + graph.left_out
                return f"Step {number} of {count}, {row.step_id}: {row.state}."
    return ""


def _list_results(execution: ExecutionState) -> Iterator[JsonValue]:
    """Yield what the tools of the last completed steps returned, and nothing that a model wrote."""
    completed = [step for step in execution.steps.values() if step.status == "completed" and step.calls]
    for step in completed[-MAX_RESULTS:]:
        result, more = step.result, ""
        if step.items is not None and isinstance(result, list) and len(result) > PAGE_ITEMS:
            result, more = result[:PAGE_ITEMS], f" and {len(result) - PAGE_ITEMS} more items"
        yield {"step": escape_text(step.step.step_id), "text": f"{format_value(result, RESULT_CHARS)}{more}"}
