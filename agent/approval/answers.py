"""An answer as it arrives: what somebody decided, whether that person may decide, and whether its content is valid.

A second person is somebody other than the owner of the execution. Somebody who started the execution in a channel of
the operator is not a second person: otherwise one person could start a critical call and approve it alone.
"""

from itertools import islice
from typing import cast

import msgspec

from planwarden.agent.common.canonical import check_depth, is_larger
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.form import describe, find_form_faults
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.core.prompts import answer_form
from planwarden.agent.core.replies import Reply, read_calls
from planwarden.agent.ports.policy import Policy

MAX_REASON_CHARS = 2_000
MAX_CONTENT_BYTES = 1024 * 1024
MAX_FAULTS = 5
DECISION_KEYS = frozenset({"decision", "approved", "reason", "modifiedArgs"})
"""The keys of a decision, which models also send to a question that asks for a plan."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody answered, before planwarden checks whether that person may decide."""

    approved: bool | None = None
    """Whether the question is approved: only a JSON boolean, or None when `content` answers the question."""
    reason: str | None = None
    """Shown to the model, and stored in the log."""
    modified_args: dict[str, JsonValue] | None = None
    """Arguments that replace those that were shown; checked against the tool's schema."""
    content: JsonValue = None
    """The filled-in form, the chosen rows, a reviewer's `plan` and `cover`, or a caller's answer to a prompt."""

    def __post_init__(self) -> None:
        """Raise `InvalidArguments` for a field of the wrong type, such as the string "false" for `approved`."""
        if type(self.approved) not in (bool, type(None)):
            raise InvalidArguments(f"'approved' is {self.approved!r}; send the JSON boolean true or false")
        reason, modified = cast("object", self.reason), cast("object", self.modified_args)
        if not isinstance(reason, str | None) or not isinstance(modified, dict | None):
            raise InvalidArguments("'reason' has to be text, and 'modifiedArgs' an object")


class Authority(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered, through which channel, and what that proves."""

    assurance: ev.Assurance
    channel: str
    principal: str
    digest: str | None = None
    """Digest of the revision that was shown; None when the channel does not send it."""
    rendered: str = ""
    """SHA-256 of the text that was shown; empty when the channel does not know it."""
    client_id: str | None = None
    """The OAuth client through which the principal came; None if there is no client, or it is unknown."""


def can_decide(
    policy: Policy, execution: ExecutionState, needs: ev.Needs | None, principal: str, assurance: ev.Assurance
) -> ev.Assurance | None:
    """Return what an approval by this person is worth in the execution; None when it is less than `needs`."""
    owner, starter = execution.principal, execution.starter
    for name in () if starter is None else (starter.principal, starter.scheduler):
        if name is not None and policy.person(name) == policy.person(principal):
            owner = principal
    return policy.worth(assurance, principal, owner, needs)


def has_voted(policy: Policy, suspension: SuspensionState, principal: str) -> bool:
    """Return whether the person has endorsed the question; False for a form or rows, where answers may differ."""
    votes = () if suspension.question.form is not None or suspension.question.rows else suspension.endorsements
    return any(policy.person(vote.principal) == policy.person(principal) for vote in votes)


def read_reply(purpose: ev.Purpose, content: JsonValue) -> Reply:
    """Return the caller's content as the reply to a prompt. Raises `InvalidArguments` for malformed content."""
    if isinstance(content, str) and content.strip():
        return Reply(content=content)
    expected = {
        "plan": '{"todoList": [...]}',
        "step": '{"toolCalls": [{"toolName": "...", "arguments": {...}}]} or {"content": "..."}',
        "synthesize": '{"content": "..."}',
    }[purpose]
    if not isinstance(content, dict):
        raise InvalidArguments(f"the content is {describe(content)}; send {expected}")
    if purpose == "plan":
        if content and content.keys() <= DECISION_KEYS:
            raise InvalidArguments(f"the content decides something, but this question asks for a plan; send {expected}")
        text = content.get("content")
        # A model that answers other prompts with {"content": "..."} may also write its plan there.
        return Reply(content=text) if isinstance(text, str) and len(content) == 1 else Reply(plan=content)
    faults = list(islice(find_form_faults(content, answer_form(purpose), "content"), MAX_FAULTS))
    raw_calls, text = content.get("toolCalls"), content.get("content")
    if not faults and raw_calls is None and text is None:
        faults = ["the content has neither 'toolCalls' nor 'content'"]
    calls = read_calls(raw_calls) if isinstance(raw_calls, list) and not faults else ()
    if isinstance(raw_calls, list) and len(calls) != len(raw_calls):
        faults = faults or ["content.toolCalls has more than 50 calls, or a name that is too long"]
    if faults:
        raise InvalidArguments(f"{'; '.join(faults)}; send {expected}")
    assert text is None or isinstance(text, str)
    return Reply(content=text, calls=calls, revise=content.get("revise"))


def check_form(form: dict[str, JsonValue], content: JsonValue) -> None:
    if content is None:
        raise InvalidArguments("this question asks for 'content'", details={"answerSchema": form})
    try:
        faults = Schema(form, checks_dates=True).find_faults(content)
    except ValueError as error:
        raise InvalidArguments(f"the form of this question is not a usable JSON Schema: {error}") from None
    if faults:
        raise InvalidArguments(
            f"the content does not fit the form: {'; '.join(faults[:5])}", details={"answerSchema": form}
        )


def check_size(answer: Decision) -> None:
    for value in (answer.content, answer.modified_args):
        if value is not None:
            check_depth(value)
            if is_larger(value, MAX_CONTENT_BYTES):
                raise LimitExceeded(f"the answer is larger than {MAX_CONTENT_BYTES} bytes")
    if answer.reason is not None and len(answer.reason) > MAX_REASON_CHARS:
        raise LimitExceeded(f"the reason has {len(answer.reason)} characters, the limit is {MAX_REASON_CHARS}")
