"""What can grow and how far, from the constants that stop it."""

from dev.reference.code import table
from planwarden.agent.approval import answers
from planwarden.agent.common import artifact, canonical
from planwarden.agent.core import replies
from planwarden.agent.core.execution import references
from planwarden.agent.core.plan import plan as plans
from planwarden.server.api import limits as service_limits
from planwarden.server.auth import admission
from planwarden.server.inbox import app as inbox_app
from planwarden.server.mcp import frames, requests
from planwarden.server.mcp import results as mcp_results
from planwarden.server.mcp import text as mcp_text
from planwarden.server.plans import library, plan_file
from planwarden.server.settings import options, rules
from planwarden.server.transports import http, middleware
from planwarden.tools.downstream import value_counter

_KIB, _MIB = 1024, 1024 * 1024


def _size(count: int) -> str:
    return f"{count // _MIB} MiB" if count % _MIB == 0 else f"{count // _KIB} KiB"


def limits() -> str:
    """One row for each kind of input."""
    assert plans.MAX_TEXT_CHARS == service_limits.MAX_GOAL_CHARS == options.MAX_PROMPT_CHARS
    inline = f"{_size(artifact.INLINE_BYTES)} and {artifact.INLINE_VALUES:,} values"
    stored = f"{_size(artifact.MAX_ARTIFACT_BYTES)} and {artifact.MAX_ARTIFACT_VALUES:,} values"
    answer = f"{mcp_results.MAX_STRUCTURED:,} characters of data and {mcp_text.MAX_TEXT:,} of text"
    listed = f"lists of questions have {mcp_results.LISTED_ROWS} rows of each"
    in_minutes = f"in {service_limits.ATTEMPTS_S / 60:g} minutes"
    rows = (
        ("steps of a plan", f"{plans.MAX_STEPS} (`[execution] maxSteps`)"),
        ("calls of one reply or step", f"{plans.MAX_CALLS_PER_STEP}"),
        ("arguments of a call", _size(references.MAX_ARGUMENT_BYTES)),
        ("result of a call", f"{inline} in the log, {stored} beside it, or the call fails"),
        ("content of an answer", _size(answers.MAX_CONTENT_BYTES)),
        (
            "saved plans of a folder, a file, all files",
            f"{library.MAX_FILES}, {_size(plan_file.MAX_FILE_BYTES)}, {_size(library.MAX_TOTAL_BYTES)}",
        ),
        (
            "rules, conditions of a rule, budgets of a rule",
            f"{rules.MAX_RULES}, {rules.MAX_CONDITIONS}, {rules.MAX_BUDGETS}; judging a call takes at most about 50 ms",
        ),
        ("goal, description, prompt override", f"{plans.MAX_TEXT_CHARS:,} characters"),
        ("reason of a decision", f"{answers.MAX_REASON_CHARS:,} characters"),
        ("text of a model", f"{replies.MAX_CONTENT_CHARS:,} characters"),
        ("nesting of JSON", f"{canonical.MAX_DEPTH}"),
        ("result of an MCP call", f"{answer}; long values are cut, then lists, beside their count; {listed}"),
        (
            "approvals without a person, per question",
            f"{service_limits.ATTEMPTS} {in_minutes}, then `rate_limited`; as many forms or pages without a decision",
        ),
        ("message of an MCP client", f"{_size(frames.MAX_FRAME_BYTES)} and {value_counter.MAX_VALUES:,} values"),
        (
            "body of an HTTP request",
            f"{_size(http.MAX_BODY_BYTES)}; in the inbox {_size(inbox_app.MAX_BODY_BYTES)}",
        ),
        (
            "MCP calls of one owner at a time, while another owner sends",
            f"{requests.MAX_AT_ONCE}; the others wait; a call counts for {requests.WORK_S:g} s",
        ),
        (
            "open sessions of the older protocol, per caller",
            f"{middleware.MAX_SESSIONS}; then its oldest idle one is closed",
        ),
        ("bearer tokens refused, per address", f"{admission.FAILURES} in {admission.WINDOW_S:g} s, then 429"),
    )
    return table(("input", "limit"), rows)
