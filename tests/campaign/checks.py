"""What must hold after a round, by the ledger, the log and what people were told; each breach is one sentence."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.ports.store import Header
from tests.campaign.ledger import Ledger, Line
from tests.campaign.plans import EFFECTS, NEEDS_CONSENT
from tests.campaign.processes import Lost
from tests.campaign.records import Records
from tests.campaign.stage import Stage
from tests.campaign.testimony import Testimony

MARGIN_S = 1.0
"""How long after a pause a process may still look like one that was lost."""
COMMAND_S = 30.0
_FAULT = re.compile(r"^Traceback|internal error", re.MULTILINE)


@dataclass
class Checker:
    """Looks at everything that a stage has done so far; a log that ended is read once."""

    stage: Stage
    testimony: Testimony
    _ended: dict[str, ExecutionState] = field(default_factory=dict[str, ExecutionState])
    _seen_takes: int = 0
    _seen_logs: dict[str, int] = field(default_factory=dict[str, int])

    async def breaches(self) -> list[str]:
        """Every promise that was broken; empty when all held."""
        records, ledger = Records(self.stage.home), Ledger(self.stage.folder)
        headers = records.headers()
        for header in headers:
            if header.execution_id not in self._ended:
                self._ended[header.execution_id] = records.state(header)
        done = ledger.lines("done")
        found = [
            *self._unfinished(headers),
            *self._lost(headers),
            *self._repeated(done),
            *self._not_agreed(done),
            *self._after_giving_up(done),
            *self._not_as_logged(done),
            *self._robbed(ledger),
            *self._faults(),
        ]
        for command in (["audit", "verify"], ["doctor"]):
            found += await self._command(command)
        return found

    def _unfinished(self, headers: list[Header]) -> Iterator[str]:
        for header in headers:
            state = self._ended[header.execution_id]
            if not state.is_finished:
                del self._ended[header.execution_id]
                asked = [found.question.kind for found in state.open_suspensions]
                troubles = list(self.testimony.troubles)
                yield f"stuck: execution {header.execution_id} is {header.status}, open {asked}; troubles: {troubles}"

    def _lost(self, headers: list[Header]) -> Iterator[str]:
        known = {header.execution_id for header in headers}
        for execution_id in set(self.testimony.started) - known:
            yield f"lost: the start of {execution_id} was acknowledged"
        questions = {name: found for state in self._ended.values() for name, found in state.suspensions.items()}
        for verdict in self.testimony.verdicts:
            found = questions.get(verdict.suspension_id)
            decision = None if found is None else found.decision
            if decision is None or decision.approved != verdict.approved:
                yield f"lost: {verdict} was acknowledged, the log says {None if found is None else found.status}"

    def _repeated(self, done: list[Line]) -> Iterator[str]:
        for key, count in Counter(line.key for line in done).items():
            if count > 1:
                processes = [line.pid for line in done if line.key == key]
                yield f"twice: {key} happened {count} times, in processes {processes}"

    def _not_agreed(self, done: list[Line]) -> Iterator[str]:
        for line in done:
            if line.facts["tool"] in NEEDS_CONSENT:
                execution_id, step_id, _ = line.key.split(":")
                consent = (execution_id, step_id, line.facts["tool"], canonical_json(line.facts["arguments"]))
                if consent not in self.testimony.consents:
                    yield f"unapproved: {line.key} ran {line.facts['tool']} with {line.facts['arguments']}"

    def _after_giving_up(self, done: list[Line]) -> Iterator[str]:
        for line in done:
            if line.at > self.testimony.surrendered.get(line.key, float("inf")):
                yield f"after giving up: {line.key} happened although a person had given it up"

    def _not_as_logged(self, done: list[Line]) -> Iterator[str]:
        arguments = {line.key: line.facts["arguments"] for line in done}
        calls = {f"{name}:{call.call_id}": call for name, state in self._ended.items() for call in _effects(state)}
        for key, call in calls.items():
            if call.status == "succeeded" and key not in arguments:
                yield f"false success: the log says that {key} returned, and it never happened"
            if key in arguments and canonical_json(arguments[key]) != canonical_json(dict(call.arguments or {})):
                yield f"other arguments: {key} happened with {arguments[key]}, the log says {call.arguments}"
        for key in arguments.keys() - calls.keys():
            if key.split(":")[0] in self._ended:
                yield f"no intent: {key} happened and the log does not know the call"

    def _robbed(self, ledger: Ledger) -> Iterator[str]:
        """Executions taken from a process that lived and was not stopped; who is hasty may take them."""
        owners = {line.facts["owner"]: line.pid for line in ledger.lines("owner")}
        takes = [] if self.stage.launcher.is_hasty else ledger.lines("took")
        for line in takes[self._seen_takes :]:
            previous = self.stage.launcher.started.get(owners.get(line.facts["previous"], 0))
            if previous is not None and not previous.was_hurt(line.at, MARGIN_S) and not previous.has_ended:
                yield (
                    f"robbed: {line.facts['execution']} was taken by process {line.pid} "
                    f"from process {previous.pid}, which lives"
                )
        self._seen_takes = len(takes)

    def _faults(self) -> Iterator[str]:
        for path in sorted((self.stage.folder / "logs").iterdir()):
            text = path.read_text(encoding="utf-8", errors="replace")
            news, self._seen_logs[path.name] = text[self._seen_logs.get(path.name, 0) :], len(text)
            if (found := _FAULT.search(news)) is not None:
                yield f"fault: {path.name} says {news[max(0, found.start() - 200) :][:1500]!r}"

    async def _command(self, arguments: list[str]) -> list[str]:
        """What a command says that finds damage."""
        process = self.stage.launcher.without_input(*arguments, "--json")
        try:
            code = await process.wait(COMMAND_S)
        except Lost as error:
            return [f"{' '.join(arguments)}: {error}"]
        said = b""
        while part := os.read(process.outlet, 1 << 20):
            said += part
        if code == 0:
            return []
        document = json.loads(said or b"{}")
        broken = [check for check in document.get("checks", []) if check["status"] == "broken"]
        return [f"{' '.join(arguments)}: exit code {code}: {str(broken or document)[:600]}"]


def _effects(state: ExecutionState) -> Iterator[Call]:
    for step in state.steps.values():
        yield from (call for call in step.calls if call.tool_name in EFFECTS)
