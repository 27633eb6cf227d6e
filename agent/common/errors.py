"""Every error that planwarden raises on purpose, split by who has to act.

Each class has a stable `code` that appears unchanged in MCP results, on the command line and in failed executions.
`details` is JSON that helps the caller, such as the names that exist. Messages say what happened, to which id, and what
to do next. They contain neither secrets nor tool output. The first line of a class's docstring is its default message.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, ClassVar

from planwarden.agent.common.struct import JsonValue

MAX_MESSAGE_CHARS = 2_000
"""The most characters of a message, which may quote what somebody sent; a longer one is cut, with an ellipsis."""


def count_of(number: int, noun: str) -> str:
    """Return the number and the noun, which takes an `s` unless the number is 1: `2 calls`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Needed(Exception):
    """Not an error: `keys` have to be looked up, and then the pure function that raised this can be called again."""

    keys: frozenset[Any]

    def __init__(self, keys: Iterable[Hashable]) -> None:
        self.keys = frozenset(keys)
        super().__init__(count_of(len(self.keys), "value"))


class PlanwardenError(Exception):
    """Something planwarden refuses or could not do."""

    code: ClassVar[str] = "internal_error"

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        """Set the code of the class; without `code`, the class keeps the code of its base."""
        if code is not None:
            cls.code = code

    def __init__(self, message: str | None = None, *, details: Mapping[str, JsonValue] | None = None) -> None:
        text = message or (self.__doc__ or "").splitlines()[0]
        super().__init__(text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 2]} …")
        self.details: dict[str, JsonValue] = dict(details or {})

    @property
    def message(self) -> str:
        return str(self.args[0])


class UsageError(PlanwardenError, code="invalid_arguments"):
    """The caller asked for something that cannot be done as asked."""


class InvalidArguments(UsageError, code="invalid_arguments"):
    """The arguments do not have the expected form."""


class NotStorable(InvalidArguments, ValueError):
    """A value cannot be recorded, because it could not be read back."""


class InvalidPlan(UsageError, code="invalid_plan"):
    """The plan cannot run as written."""


class UnknownTool(UsageError, code="unknown_tool"):
    """No tool has that name."""


class UnknownPlan(UsageError, code="unknown_plan"):
    """No saved plan has that name."""


class PlanChanged(UsageError, code="plan_changed"):
    """The saved plan has changed since it was shown; nothing was started."""


class UnknownThread(UsageError, code="unknown_thread"):
    """No thread has that id."""


class UnknownArtifact(UsageError, code="unknown_artifact"):
    """No artifact has that id."""


class UnknownSuspension(UsageError, code="unknown_suspension"):
    """No suspension has that id."""


class UnknownGrant(UsageError, code="unknown_grant"):
    """No standing grant has that id."""


class UnknownSchedule(UsageError, code="unknown_schedule"):
    """No schedule has that id."""


class ThreadBusy(UsageError, code="thread_busy"):
    """The thread has an unfinished execution."""


class NotRetryable(UsageError, code="not_retryable"):
    """The execution cannot be retried in this way."""


class KeyConflict(UsageError, code="key_conflict"):
    """The key was used for another goal, plan or inputs."""


class AlreadyDecided(UsageError, code="already_decided"):
    """The suspension was decided differently before."""


class AlreadyAnswered(UsageError, code="already_answered"):
    """The question to the caller was answered before with other content."""


class Expired(UsageError, code="expired"):
    """The time to answer the suspension has passed."""


class StaleDefinition(UsageError, code="stale_definition"):
    """The tool's definition changed since the question was asked."""


class StaleRevision(UsageError, code="stale_revision"):
    """The suspension was revised since it was shown."""


class EditRefused(UsageError, code="edit_refused"):
    """People have approved the arguments, so only a person may edit them."""


class UndecidableHere(UsageError, code="undecidable_here"):
    """What the question covers cannot be shown here, so it cannot be approved here."""


class RateLimited(UsageError, code="rate_limited"):
    """Too many attempts in a short time."""


class LimitExceeded(UsageError, code="limit_exceeded"):
    """Something is larger than the configured limit."""


class ModelError(PlanwardenError, code="model_error"):
    """The model could not be reached or gave no usable answer."""

    def __init__(
        self,
        message: str | None = None,
        *,
        retryable: bool = False,
        asked_s: float | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        """Pass the tokens of unusable answers, because the provider charges for them too.

        Set `retryable` if the provider failed or was out of reach, so that it may answer the same prompt in minutes
        or hours. `asked_s` is how many seconds the provider asks callers to wait.
        """
        super().__init__(message)
        self.retryable, self.asked_s = retryable, asked_s
        self.input_tokens, self.output_tokens = input_tokens, output_tokens


class ToolError(PlanwardenError, code="tool_error"):
    """A tool refused or failed; raise this from a tool to give the model a clear sentence.

    `retryable` says that nothing happened, and that another attempt may succeed. `beside` is what else a server sent
    with its refusal, for the people and models that read it.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        details: Mapping[str, JsonValue] | None = None,
        retryable: bool = False,
        beside: JsonValue = None,
    ) -> None:
        super().__init__(message, details=details)
        self.retryable = retryable
        self.beside = beside


class OutcomeUnknown(ToolError, code="outcome_unknown"):
    """The call was sent and may have happened, but its result never arrived."""


class StoreError(PlanwardenError, code="storage_error"):
    """The storage could not read or commit."""


class CommitUnknown(StoreError):
    """It is not known whether the storage has committed; look, or ask again."""


class StoreReplaced(StoreError):
    """The storage was replaced under the running process, which has to end."""


class LogUnreadable(StoreError):
    """The log of an execution is damaged, or a newer planwarden wrote it; this process leaves it alone."""

    def __init__(self, message: str | None = None, *, sequence: int | None = None) -> None:
        """Take, as `sequence`, the number of the first event that cannot be read; None if it is not known."""
        super().__init__(message)
        self.sequence = sequence


class ExecutionConflict(PlanwardenError, code="conflict"):
    """Another writer changed the execution first."""


class VersionConflict(ExecutionConflict):
    """The log has grown since it was read; load the tail and decide again."""


class LeaseLost(ExecutionConflict):
    """Another process owns the execution now; stop writing to it."""


class GuardFailed(ExecutionConflict):
    """The suspension is no longer pending, was revised, or has expired."""


class GrantUsedUp(GuardFailed):
    """A standing grant has no use left, has expired, or was revoked."""

    def __init__(self, grant_id: str) -> None:
        super().__init__(f"grant {grant_id!r} has no use left, has expired, or was revoked")
        self.grant_id = grant_id


class BudgetExceeded(GuardFailed):
    """A rule's budget has too little left for a call that the rule would let pass."""

    def __init__(self, budget: str, rest: float, room_at: float | None = None) -> None:
        """`rest` is what is left now; `room_at` is when the call will fit, in Unix seconds, or None if never."""
        super().__init__(f"budget {budget!r} has room for {rest:g} only")
        self.budget, self.left, self.room_at = budget, rest, room_at


class DuplicateEffect(GuardFailed, UsageError, code="duplicate_effect"):
    """Another call with the same business key was made before; its effect happens once."""


class StartRefused(ExecutionConflict):
    """The store refused to start an execution."""


class KeyUsed(StartRefused):
    """The principal has used the key before; the execution that it started is the answer."""


class ThreadMovedOn(StartRefused):
    """The thread is not as it was when the start was judged: look at it again."""


class PlanUnfinished(StartRefused):
    """The principal is already running the same plan; the message is for the caller who starts it again."""

    def __init__(self, execution_id: str, thread_id: str, key: str | None, digest: str) -> None:
        super().__init__(
            f"execution {execution_id!r} (thread {thread_id!r}) runs the same plan and is not finished. This "
            "execution is a second one: cancel it if you only sent the plan again; "
            + (
                f"a plan sent with a key, such as {f'plan-{digest[:12]}'!r}, starts once"
                if key is None
                else f"sent with key {key!r}, the plan is answered with that execution"
            )
        )
        self.execution_id = execution_id


class IllegalTransition(PlanwardenError, code="illegal_transition"):
    """The event cannot follow what the log already says."""
