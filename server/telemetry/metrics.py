"""Metrics of executions. The process that commits an event counts it, so that each event counts once.

No client or server can choose the value of a metric's attribute: only known names of tools and methods appear, and no
ids. Histogram boundaries are those that the conventions advise; sources: see
`planwarden.server.telemetry.attributes`.
"""

import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry.metrics import Histogram, Meter

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.server.telemetry.attributes import Attributes

OUTCOMES = (
    ev.ExecutionCompleted,
    ev.ExecutionRehearsed,
    ev.ExecutionRejected,
    ev.ExecutionFailed,
    ev.ExecutionExhausted,
    ev.ExecutionCancelled,
)
COUNTED: frozenset[type[ev.Event]] = frozenset(
    {
        *OUTCOMES,
        ev.ValidationFailed,
        ev.StepCompleted,
        ev.SuspensionDecided,
        ev.SuspensionTimedOut,
        ev.SuspensionWithdrawn,
        ev.ModelReplied,
        ev.ModelFailed,
        ev.Suspended,
    }
)
"""Events that `count` handles; it returns at once for all others, which are most of a log."""
WAITS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0)
"""Boundaries for the waiting time of questions, from a second to a week."""
MODEL_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Advised for `gen_ai.client.operation.duration`."""
TOKENS = tuple(float(4**power) for power in range(14))
"""Advised for `gen_ai.client.token.usage`: 1 to 67,108,864."""
MCP_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Advised for `mcp.client.operation.duration` and `mcp.server.operation.duration`."""
TAKEOVER_S = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Boundaries for takeovers: from a killed process to a silent one whose call may take long."""
WAKEUP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
"""Boundaries for wake-ups: from a hint of the database to a process that nobody told."""
MAX_UNCOMMITTED = 2_048
"""Durations of prompts whose reply is not committed yet; beyond this number the oldest are dropped."""


class Metrics:
    """Instruments of one meter."""

    def __init__(self, meter: Meter, model: Attributes) -> None:
        """`model` comes from `build_model_attributes`."""
        self._model = model
        self._took: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._executions = meter.create_counter(
            "planwarden.executions", unit="{execution}", description="Executions that ended, by outcome."
        )
        self._failures = meter.create_counter(
            "planwarden.validation.failures",
            unit="{failure}",
            description="Times that the log did not prove a step: a required tool had no successful call.",
        )
        self._rescues = meter.create_counter(
            "planwarden.enforcement.rescues",
            unit="{step}",
            description="Steps that were proved only after an enforcement prompt.",
        )
        self._waits = _create_histogram(
            meter, "planwarden.question.wait", "s", "Time from a question to its end, by outcome.", WAITS_S
        )
        self._takeovers = _create_histogram(
            meter,
            "planwarden.takeover.delay",
            "s",
            "Time from the last sign of life of a process to the takeover of its execution by this one.",
            TAKEOVER_S,
        )
        self._wakeups = _create_histogram(
            meter,
            "planwarden.wakeup.delay",
            "s",
            "Time from a decision that another process stored until this one continues the execution.",
            WAKEUP_S,
        )
        self._durations = _create_histogram(
            meter, "gen_ai.client.operation.duration", "s", "GenAI operation duration.", MODEL_S
        )
        self._tokens = _create_histogram(
            meter, "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.", TOKENS
        )
        self.server_durations = _create_histogram(
            meter,
            "mcp.server.operation.duration",
            "s",
            "MCP request or notification duration as observed on the receiver.",
            MCP_S,
        )
        self.client_durations = _create_histogram(
            meter,
            "mcp.client.operation.duration",
            "s",
            "The duration of the MCP request or notification as observed on the sender.",
            MCP_S,
        )

    @contextmanager
    def time_prompt(self, execution_id: str, key: str) -> Generator[None]:
        """Times the block, in which a provider's model answers a prompt; `count` records the time with the outcome."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._took[execution_id, key] = time.perf_counter() - began
            if len(self._took) > MAX_UNCOMMITTED:
                self._took.popitem(last=False)

    def count(self, execution: ExecutionState, recorded: ev.Recorded) -> None:
        """Counts the event; `execution` is the state after its transaction."""
        event = recorded.event
        if type(event) not in COUNTED:
            return
        if isinstance(event, OUTCOMES):
            self._executions.add(1, {"planwarden.execution.status": find_outcome(event)})
            for found in find_withdrawn(execution, recorded.at):
                self._waits.record(compute_wait_s(found), build_wait_attributes(found))
            return
        match event:
            case ev.ValidationFailed():
                self._failures.add(
                    1, {"planwarden.validation.mode": event.mode, "planwarden.validation.enforced": event.enforced}
                )
            case ev.StepCompleted(validation="passed") if execution.steps[event.step_id].retries:
                self._rescues.add(1)
            case ev.SuspensionDecided() | ev.SuspensionTimedOut() | ev.SuspensionWithdrawn():
                found = execution.suspensions[event.suspension_id]
                self._waits.record(compute_wait_s(found), build_wait_attributes(found))
            case ev.ModelReplied() | ev.ModelFailed():
                self._count_reply(execution.execution_id, event)
            case ev.Suspended(question=question) if question.prompt is not None:
                # The caller answers the prompt, so no provider took any time.
                self._took.pop((execution.execution_id, build_question_key(question)), None)
            case _:
                pass

    def count_takeover(self, after_s: float, *, is_silent: bool) -> None:
        """Counts an execution that this process took from another one."""
        self._takeovers.record(after_s, {"planwarden.takeover.owner": "silent" if is_silent else "dead"})

    def count_wakeup(self, after_s: float) -> None:
        """Counts a decision of another process by which this one continues an execution."""
        self._wakeups.record(after_s)

    def _count_reply(self, execution_id: str, event: ev.ModelReplied | ev.ModelFailed) -> None:
        about: Attributes = {**self._model, "planwarden.purpose": event.purpose}
        took_s = self._took.pop((execution_id, build_prompt_key(event.purpose, event.step_id)), None)
        if took_s is not None:
            failed: Attributes = {"error.type": event.code} if isinstance(event, ev.ModelFailed) else {}
            self._durations.record(took_s, {**about, **failed})
        for kind, tokens in (("input", event.input_tokens), ("output", event.output_tokens)):
            if tokens:
                self._tokens.record(tokens, {**about, "gen_ai.token.type": kind})


def find_outcome(event: ev.Event) -> str:
    """Returns the status in which the event ends an execution."""
    match event:
        case ev.ExecutionExhausted():
            return "incomplete"
        case _:
            return type(event).__name__.removeprefix("Execution").lower()


def find_withdrawn(execution: ExecutionState, at: float) -> list[SuspensionState]:
    """Returns the suspensions that were still open when the execution ended at `at`."""
    return [
        found
        for found in execution.suspensions.values()
        if found.status == "withdrawn" and found.decision is None and found.decided_at == at
    ]


def compute_wait_s(found: SuspensionState) -> float:
    """Returns the seconds from the question to its end, by the store's clock."""
    return max(0.0, (found.decided_at or found.created_at) - found.created_at)


def build_wait_attributes(found: SuspensionState) -> dict[str, str]:
    """Returns the kind of a question and how it ended; each attribute has few values."""
    outcome: str = found.status
    if found.status == "decided" and found.decision is not None:
        outcome = "approved" if found.decision.approved else "rejected"
    return {
        "planwarden.suspension.kind": found.question.kind,
        "planwarden.suspension.addressee": found.question.addressee,
        "planwarden.suspension.outcome": outcome,
    }


def build_prompt_key(purpose: ev.Purpose, step_id: str | None) -> str:
    """Returns what `PromptJob.key` returns for the same prompt."""
    return f"prompt {purpose} {step_id or ''}"


def build_question_key(question: ev.Question) -> str:
    """Returns the key of the prompt that became this question to the caller."""
    purposes: dict[str, ev.Purpose] = {"plan": "plan", "step": "step", "synthesis": "synthesize"}
    return build_prompt_key(purposes.get(question.kind, "step"), question.step_id)


def _create_histogram(meter: Meter, name: str, unit: str, description: str, boundaries: tuple[float, ...]) -> Histogram:
    return meter.create_histogram(
        name, unit=unit, description=description, explicit_bucket_boundaries_advisory=boundaries
    )
