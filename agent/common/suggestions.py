"""What somebody may have meant by an unknown word: a command, an option, a tool, a key.

`MISNOMERS` is the one table of wrong names that models give to keys. A wrong key is never read as the right one,
because a guess may change what runs. It is refused, and the message names the right key.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import chain, islice

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.common.struct import JsonValue

MAX_NAME_CHARS = 64
MAX_NAMES = 10
MAX_CHARS = 100
"""The most characters of a word for which a similar one is sought."""
MAX_KNOWN = 5_000
MIN_PART_CHARS = 4
"""A word that ends with another one counts as similar only if the shorter one has at least this many characters."""

MISNOMERS: Mapping[str, tuple[str, ...]] = {
    "todoList": ("tasks", "todos", "todo", "items", "plan", "stepList"),
    "id": ("stepId", "step", "number", "key", "name"),
    "description": ("title", "task", "instruction", "instructions", "text", "what", "action", "summary", "goal"),
    "stepType": ("type", "kind"),
    "requiredTools": ("tools", "toolNames", "toolsRequired", "requires", "tool"),
    "dependencies": ("dependsOn", "depends", "dependency", "deps", "after", "needs", "prerequisites"),
    "toolCalls": ("calls", "toolCall", "functionCalls", "actions", "toolUse"),
    "toolName": ("name", "tool", "function", "functionName"),
    "arguments": ("args", "input", "inputs", "parameters", "params", "kwargs", "toolInput"),
    "expectedOutcome": ("expected", "outcome", "expectedResult", "expectedOutput", "successCriteria"),
    "confirms": ("covers", "confirm", "confirmsSteps"),
    "onReject": ("onRejection", "ifRejected"),
    "toolValidationMode": ("validation", "validationMode"),
    "threadId": ("thread", "executionId", "conversationId", "sessionId", "runId", "id"),
    "suspensionId": ("suspension", "questionId", "question", "requestId", "id"),
    "goal": ("task", "prompt", "objective", "query", "input", "message"),
    "plan": ("todoList", "steps", "tasks", "todos"),
    "key": ("idempotencyKey",),
    "name": ("plan", "planName", "savedPlan", "id"),
    "inputs": ("input", "arguments", "args", "parameters", "params", "variables", "values"),
    "decision": ("approved", "approve", "approval", "verdict", "answer", "response"),
    "approved": ("approve", "accept", "accepted", "confirmed", "ok", "decision", "allow"),
    "modifiedArgs": ("modifiedArguments", "arguments", "args", "edits", "newArgs"),
    "revise": ("todoList", "steps", "plan", "revision", "changes"),
    "content": ("answer", "response", "reply", "result", "output", "text", "data", "message", "toolCalls", "todoList"),
    "reason": ("comment", "explanation", "why", "note"),
    "waitSeconds": ("wait", "timeout", "timeoutSeconds", "waitTime"),
    "names": ("name", "tools", "toolNames", "tool"),
    "query": ("q", "search", "text", "keywords"),
    "observationsAfter": ("after", "since", "history", "observations"),
    "limit": ("pageSize", "count", "max", "maxResults"),
    "maxIterations": ("iterations", "maxSteps", "maxTurns"),
    "taefMaxRetries": ("maxRetries", "retries"),
    "toolMode": ("mode",),
    "synthesize": ("synthesis", "summarize"),
    "rehearse": ("dryRun", "dry", "simulate", "simulation", "preview", "rehearsal"),
    "modelTokens": ("tokens", "maxTokens"),
    "seconds": ("time", "maxSeconds", "timeout"),
    "planning": ("plan",),
    "execution": ("step", "execute"),
    "value": ("from", "left", "field", "input", "binding", "source"),
    "matches": ("schema", "match", "condition", "test", "is", "right", "expression", "op", "operator", "equals"),
    "when": ("if", "condition", "conditions", "onlyIf", "runIf", "where"),
    "attempts": ("times", "count", "max", "maxAttempts", "maxRetries", "retries", "tries"),
    "delayS": ("delay", "wait", "backoff", "seconds", "interval", "delaySeconds", "initialDelay"),
    "maxDelayS": ("maxDelay", "maxWait", "maxBackoff"),
    "factor": ("backoffFactor", "multiplier", "exponent"),
    "forEach": ("loop", "foreachItem", "iterate", "over", "map", "each"),
    "maxItems": ("limit", "maxLength", "maxSize", "maxCount"),
    "const": ("eq", "==", "=", "===", "equal", "equals", "equalTo", "is"),
    "enum": ("in", "isIn", "values"),
    "exclusiveMinimum": ("gt", ">", "greaterThan", "moreThan", "above", "over"),
    "minimum": ("gte", ">=", "ge", "min", "atLeast", "greaterThanOrEqual"),
    "exclusiveMaximum": ("lt", "<", "lessThan", "below", "under"),
    "maximum": ("lte", "<=", "le", "atMost", "lessThanOrEqual"),
    "not": ("ne", "!=", "neq", "notEqual", "notEquals", "isNot"),
    "pattern": ("regex", "regexp", "like", "matches", "format", "startsWith"),
    "minItems": ("length", "size", "count", "notEmpty", "nonEmpty"),
    "contains": ("any", "some", "elemMatch", "has", "includes"),
    "items": ("all", "every", "each"),
    "required": ("exists", "has"),
    "anyOf": ("or", "any", "oneOf"),
    "allOf": ("and",),
}
"""For each right key, what models write instead. How words are joined and capitalised does not matter."""
INNER_KEYS: Mapping[str, tuple[str, ...]] = {
    "options": (
        *("maxIterations", "taefMaxRetries", "toolMode", "waitSeconds", "synthesize", "budgets", "prompts"),
        *("rehearse", "review"),
    ),
    "plan": ("todoList", "steps"),
    "decision": ("approved", "modifiedArgs", "reason", "content"),
}
"""Keys that models write beside each key, although they belong inside it."""

_CALLS = ("function", "functionCall", "function_call", "toolUse", "tool_use", "call")
"""Keys under which other APIs put a call."""
_NAMES = ("name", "recipient_name", "tool_name", "tool")
_ARGUMENTS = ("arguments", "input", "args", "parameters", "params")
_CALL_MARKS = frozenset({"type", "recipient_name", "tool_use_id"})
"""Keys that reveal a call in the form of another API when it is not under a key of `_CALLS`."""
MAX_SHOWN_CHARS = 300


def _join(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name[:MAX_NAME_CHARS].lower())


def find_right_key(wrong: str, valid_keys: Iterable[str]) -> str | None:
    """Return the valid key that was probably meant, or None."""
    keys, plain = list(valid_keys), _join(wrong)
    for key in keys:
        if plain and _join(key) == plain:
            return key
    for key, others in MISNOMERS.items():
        if key in keys and (plain in map(_join, others) if plain else wrong in others):
            return key
    return next(iter(get_close_matches(wrong[:MAX_NAME_CHARS], keys, 1, 0.75)), None)


def describe_unknown_keys(
    where: str, unknown: Iterable[str], valid_keys: Collection[str], absent: Collection[str] | None = None
) -> str:
    """Return a sentence that names the unknown keys, a right key for each (if given, one of `absent`), and all keys
    that `where` takes."""
    parts: list[str] = []
    for wrong in sorted(unknown)[:MAX_NAMES]:
        right = (
            _find_place(wrong, valid_keys)
            or find_right_key(wrong, valid_keys if absent is None else absent)
            or _find_place(find_right_key(wrong, chain.from_iterable(INNER_KEYS.values())) or "", valid_keys)
        )
        parts.append(f"{wrong[:MAX_NAME_CHARS]!r}" + (f" (write {right!r})" if right else ""))
    return f"{where} has no key {', '.join(parts)}" + (f"; it takes {', '.join(valid_keys)}" if valid_keys else "")


def describe_foreign_call(where: str, document: Mapping[str, JsonValue]) -> str | None:
    """Return how to write a tool call that is in the form of another API; None if it is not in such a form."""
    inner = next((part for part in map(document.get, _CALLS) if isinstance(part, dict)), document)
    name = next((part for part in map(inner.get, _NAMES) if isinstance(part, str) and part), "")
    if not name or "toolName" in document or (inner is document and not _CALL_MARKS & document.keys()):
        return None
    key = next((key for key in _ARGUMENTS if key in inner), "")
    arguments = inner.get(key, {})
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except PlanwardenError:
            return None
    right = json.dumps({"toolName": name.removeprefix("functions."), "arguments": arguments}, ensure_ascii=False)
    example = (
        right
        if len(right) <= MAX_SHOWN_CHARS
        else f'{{"toolName": {json.dumps(name[:MAX_NAME_CHARS])}, "arguments": ...}}'
    )
    return f"{where} is a call in the form of another API; write {example}"


def _find_place(wrong: str, valid_keys: Collection[str]) -> str | None:
    """Return `outer.inner` if the wrong key belongs inside another key, else None."""
    plain = _join(wrong)
    inner = ((outer, key) for outer, keys in INNER_KEYS.items() if outer in valid_keys for key in keys)
    return next((f"{outer}.{key}" for outer, key in inner if _join(key) == plain), None)


def closest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the known word that was probably meant; None if none is similar.

    Similar words differ by a typing error, in spelling, or by a prefix, such as one that hosts put before tools.
    """
    plain = _plain(word[:MAX_CHARS])
    if not plain or len(word) > MAX_CHARS:
        return None
    by_plain = {_plain(name): name for name in islice(words, MAX_KNOWN)}
    if plain in by_plain:
        return by_plain[plain]
    long = (name for name in by_plain if min(len(name), len(plain)) >= MIN_PART_CHARS)
    parts = [name for name in long if name.endswith(plain) or plain.endswith(name)]
    if parts:
        return by_plain[max(parts, key=len)]
    [match] = get_close_matches(plain, by_plain, n=1, cutoff=0.7) or [None]
    if match is None:
        match = next((name for name in by_plain if sorted(name) == sorted(plain)), None)
    return None if match is None else by_plain[match]


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return ` (did you mean 'NAME'?)` for a message, or empty text."""
    closest = closest_word(word, words)
    return "" if closest is None else f" (did you mean {closest!r}?)"


def _plain(word: str) -> str:
    """Return letters and digits in lower case: `max_iterations` means `maxIterations`, `Fs-list` means `fs_list`."""
    return "".join(filter(str.isalnum, word.casefold()))
