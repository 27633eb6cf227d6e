"""Results as text: everything that a client needs to continue if it shows its model only text.

The most important lines come first: status, ids, what to do next, and open questions with all that an answer needs.
Output, steps and observations follow. A value from outside is JSON on one line, has `|` before each line, or is between
markers, so it cannot pass for a line of ours. Long values are cut; structured content and the resource have them whole.
"""

import json
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote

from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.common.errors import count_of

Document = dict[str, Any]

MAX_TEXT = 60_000
MAX_VALUE = 4_000
_SHORT_VALUE = 400
"""The most characters of a value that are shown if the steps would otherwise not fit."""
MAX_STEPS_TEXT = 40_000


def format_execution(document: Document) -> str:
    """Return an execution, or what a call changed in it, as text."""
    ids = ", ".join(f"{key} {document[key]}" for key in ("threadId", "executionId") if key in document)
    awaiting = f" (awaiting {document['awaiting']})" if document.get("awaiting") else ""
    lines = [f"{document['status']}{awaiting}; {ids}", f"Next: {document['nextAction']}"]
    if document.get("goal"):
        lines.append(f"Goal: {_format_json(document['goal'], 1_000)}")
    if "error" in document:
        lines.append(f"Error: {document['error']['code']}: {_format_json(document['error']['message'])}")
    questions = document.get("suspensions", ())
    in_full = [suspension for suspension in questions if suspension.keys() & {"prompt", "message"}]
    if len(questions) > 1 or (questions and not in_full):
        lines.append(f"Open: {', '.join(map(_format_heading, questions))}")
    for suspension in in_full:
        lines.extend(["", *_format_question(suspension, document["nextAction"])])
    if document.get("output"):
        lines.extend(["", "Output:", *(f"| {line}" for line in cut(document["output"], 20_000).splitlines())])
    if document.get("revised"):
        changes = "; ".join(f"{kind} {', '.join(ids)}" for kind, ids in document["revised"].items())
        lines.append(f"The plan was revised: {changes}")
    if document.get("steps"):
        lines.extend(["", *_format_steps(document)])
    lines.extend(f"Warning: {_format_json(warning)}" for warning in document.get("warnings", ()))
    lines.extend(map(_format_earlier_effect, document.get("doneBefore", ())))
    lines.extend(_format_forecast(document.get("forecast", {})))
    usage = document.get("usage", {"toolCalls": 0, "modelCalls": 0})
    if usage["toolCalls"] or usage["modelCalls"]:
        lines.append(
            f"Used: {count_of(usage['toolCalls'], 'tool call')}, {count_of(usage['modelCalls'], 'model call')}"
        )
    for entry in document.get("observations", ()):
        event = f"{entry['sequence']} {entry['at']} {entry['type']} {entry.get('stepId', '')}"
        lines.append(f"{event} {_format_json(entry['data'], 500)}")
    return "\n".join(lines)


def _format_earlier_effect(effect: Document) -> str:
    call = f"{effect['toolName']} {_format_json(effect['arguments'], 200)}"
    doubt = "; nobody knows whether it happened" if effect.get("isUnknown") else ""
    return f"Done before: {call} in step {_format_json(effect['stepId'], 200)} at {effect['at']}{doubt}"


def format_suspensions(document: Document) -> str:
    """Return a page of suspensions as text."""
    lines = [f"{count_of(document['total'], 'open question')}{_format_cursor(document)}"]
    for suspension in document["suspensions"]:
        lines.extend(["", f"threadId {suspension['threadId']}", *_format_question(suspension)])
    for row in document.get("unfinished", ()):
        lines.append(
            f"No question is open in threadId {row['threadId']}, {row['status']}: {_format_json(row['title'], 200)}"
        )
    return "\n".join(lines)


def format_tools(document: Document) -> str:
    """Return a page of the catalogue as text, one tool a line."""
    if not document["total"]:
        return "no tool for plans matches; search_tools without query lists all"
    lines = [f"{document['total']} tool(s) for plans{_format_cursor(document)}; get_tool_schemas gives their arguments"]
    for tool in document["tools"]:
        facts = [f"risk {tool['risk']}", tool["executionMode"], *tool.get("capabilities", ()), f"from {tool['source']}"]
        missing = f"; not available: {tool['unavailable']}" if "unavailable" in tool else ""
        lines.append(f"{tool['signature']}: {tool['description']} [{', '.join(facts)}{missing}]")
    return "\n".join(lines)


def format_schemas(document: Document) -> str:
    """Return tool definitions as text, one JSON object a line."""
    lines = [_format_json(tool, MAX_TEXT) for tool in document["tools"]]
    if document.get("unknown"):
        lines.append(f"Unknown: {_format_json(document['unknown'])}; search_tools finds names")
    return "\n".join(lines)


def format_error(error: Document) -> str:
    """Return an error as text: its code, its message, and the details that the message does not contain."""
    sentence = f"{error['code']}: {error['message']}"
    details = {key: part for key, part in error["details"].items() if not is_in_message(part, error["message"])}
    return f"{sentence}\nDetails: {_format_json(details, 2 * MAX_VALUE)}" if details else sentence


def is_in_message(part: Any, message: str) -> bool:
    """Return whether `part`, one of an error's details, is a list of texts that the message already contains."""
    texts = cast("list[Any]", part) if isinstance(part, list) else []
    return bool(texts) and all(isinstance(text, str) and text in message for text in texts)


def cut(text: str, limit: int) -> str:
    """Return the text, cut to at most `limit` characters; a text that was cut ends with a note of its full length."""
    if len(text) <= limit:
        return text
    note = f"... [cut; {len(text)} characters in all]"
    return text[: limit - len(note)] + note


def _format_cursor(document: Document) -> str:
    cursor = document.get("nextCursor")
    return f", more with cursor {_format_json(cursor)}" if cursor else ""


def _format_heading(suspension: Document) -> str:
    step = f" of {suspension['stepId']}" if "stepId" in suspension else ""
    whom = "you" if suspension["addressee"] == "caller" else "a person"
    return f"suspensionId {suspension['suspensionId']} ({suspension['kind']}{step}, for {whom})"


def _format_question(suspension: Document, next_action: str = "") -> Iterator[str]:
    """Yield the lines of a question, without the ways to decide that `next_action` already names."""
    yield f"Question {_format_heading(suspension)}"
    is_for_caller = suspension["addressee"] == "caller"
    yield from _format_for_caller(suspension) if is_for_caller else _format_for_person(suspension, next_action)


def _format_for_caller(suspension: Document) -> Iterator[str]:
    yield from (part for key, part in suspension.items() if key in ("instructions", "results", "prompt"))
    for tool in suspension.get("tools", ()):
        fields = {key: tool[key] for key in ("name", "description", "inputSchema") if key in tool}
        yield f"Tool: {_format_json(fields, MAX_TEXT)}"
    if "answerSchema" in suspension:
        yield f"content must fit: {_format_json(suspension['answerSchema'], MAX_VALUE)}"


def _format_for_person(suspension: Document, next_action: str) -> Iterator[str]:
    yield from (f"Found: {_format_json(sentence, 1_000)}" for sentence in suspension.get("found", ()))
    yield f"Message: {_format_json(suspension['message'], 1_000)}"
    call = suspension.get("toolCall")
    if call:
        yield f"Call: {call['toolName']}({_format_json(call['arguments'])})"
    for covered in suspension.get("confirms", ()):
        yield f"Covers: {covered['stepId']} {covered['toolName']}({_format_json(covered['arguments'])})"
    for index, row in enumerate(suspension.get("calls", ())):
        yield f"Row at index {index}: {row['toolName']}({_format_json(row['arguments'])})"
    if "callCount" in suspension:
        yield f"{suspension['callCount']} rows in all; the page of the question shows them"
    for edit in suspension.get("edits", ()):
        names, who = _format_json(edit["arguments"], 1_000), _format_json(edit["principal"], 200)
        yield f"Edited: {names} by {who} (assurance {edit['assurance']}, {edit['channel']})"
    for call in suspension.get("releases", ()):
        yield f"Lets run there: {_format_json(call['toolName'], 200)}({_format_json(call['arguments'])})"
    if suspension.get("undecidable"):
        yield f"Cannot be approved here: {_format_json(suspension['undecidable'], 1_000)}"
    facts = [f"risk {suspension.get('risk')}", f"needs {suspension.get('needs')}", f"revision {suspension['revision']}"]
    if "expiresAt" in suspension:
        facts.append(f"until {suspension['expiresAt']}, then {suspension['onTimeout']}")
    yield ", ".join(facts)
    if suspension.get("answerSchema"):
        yield f"Form: {_format_json(suspension['answerSchema'])}"
    yield from _format_ways(suspension.get("howToAnswer", {}), next_action)


def _format_ways(how: Document, next_action: str) -> Iterator[str]:
    ways = [f"`{how['command']}`" if "command" in how else "", how.get("inboxUrl", "")]
    if ways := [way for way in ways if way not in next_action]:
        yield f"A person decides: {' or '.join(ways)}"


def _format_steps(document: Document) -> list[str]:
    """Return the steps with their results; shorten the values if the steps would be too long."""
    steps = document["steps"]
    lines = [line for step in steps for line in _format_step(step, MAX_VALUE, document)]
    if sum(map(len, lines)) > MAX_STEPS_TEXT:
        lines = [line for step in steps for line in _format_step(step, _SHORT_VALUE, document)]
    return lines


def _format_step(step: Document, limit: int, execution: Document) -> Iterator[str]:
    thread_id, error = quote(execution.get("threadId", ""), safe=""), step.get("error", {}).get("message", "")
    tools = f" using {', '.join(step['requiredTools'])}" if step.get("requiredTools") else ""
    proof = f" (validation {step['validationStatus']})" if "validationStatus" in step else ""
    what = f": {_format_json(step['description'], 300)}" if "description" in step else ""
    yield f"{step['id']} {step['status']}{proof}{tools}{what}"
    for call in step.get("actualToolCalls", ()):
        # The step's error ends with that of its call, and the execution's begins with that of its step.
        is_new = "error" in call and not error.endswith(call["error"]["message"])
        why = f": {_format_json(call['error']['message'], 500)}" if is_new else ""
        yield f"  {call['toolName']}({_format_json(call['arguments'], min(limit, 500))}) {call['status']}{why}"
        if "rehearsal" in call:
            yield f"    would need {_format_json(call['rehearsal'], 1_000)}"
    if "skippedBecause" in step:
        reason = step.get("skippedReason")
        yield f"  skipped after {step['skippedBecause']}" if reason is None else f"  skipped: {_format_json(reason)}"
    if "revisionRefused" in step:
        yield f"  its revision of the plan was refused: {_format_json(step['revisionRefused'], 1_000)}"
    if "result" in step:
        yield f"  result {(text := _format_json(step['result'], limit))}"
        is_stored = is_stand_in(step["result"])
        if is_stored or len(text) == limit:
            place = f"artifacts/{thread_id}/{step['result']['artifactId']}" if is_stored else f"executions/{thread_id}"
            yield f"  planwarden://{place} has it whole"
    for item in step.get("itemResults", ()):
        value = item["result"] if "result" in item else item.get("error", {}).get("message")
        yield f"  index {item['item']} {item['status']}{'' if value is None else ' ' + _format_json(value, limit)}"
    if "next" in step.get("items", {}):
        total, following = step["items"]["total"], step["items"]["next"]
        yield f"  more of its {total} items: get_execution with stepId {step['id']} and itemsFrom {following}"
    if "error" in step and not execution.get("error", {}).get("message", "").startswith(error):
        yield f"  error {step['error']['code']}: {_format_json(error, 1_000)}"


def _format_forecast(forecast: Document) -> Iterator[str]:
    for call in forecast.get("asks", ()):
        rows = "one question for all rows, " if call.get("forAllRows") else ""
        yield f"Will ask {rows}{call['whom']}: {call['stepId']} {call['toolName']}, because {call['because']}"
    for call in forecast.get("allowed", ()):
        yield f"Will not ask: {call['stepId']} {call['toolName']}, which a person allowed beforehand"
    for call in forecast.get("onlyTheRunKnows", ()):
        yield f"Only the run knows: {call['stepId']} {call['toolName']}, from {', '.join(call['takesFrom'])}"
    for call in forecast.get("impossible", ()):
        yield f"Would fail now: {call['stepId']} {call['toolName']}: {_format_json(call['why'], 500)}"
    if forecast.get("models"):
        yield f"A model writes the calls or text of: {', '.join(forecast['models'])}"


def _format_json(value: Any, limit: int = MAX_VALUE) -> str:
    return cut(json.dumps(value, ensure_ascii=False), limit)
