"""What must hold after a round, by the ledger, the log and what people were told; each breach is one sentence."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.ports.store import Header
from tests.campaign.plans import EFFECTS, NEEDS_CONSENT
from tests.harness.ledger import Ledger, Line
from tests.harness.people import GRANTED_USES, STANDING
from tests.harness.process import Lost
from tests.harness.records import Testimony
from tests.harness.seams import CALL_S
from tests.harness.stage import Stage

MARGIN_S = 1.0
"""How long after a pause a process may still look like one that was lost."""
COMMAND_S = 30.0
_FAULT = re.compile(r"^Traceback|internal error", re.MULTILINE)


@dataclass
class Checker:
    """Looks at everything that a stage has done so far; a log that ended is read once."""

    stage: Stage
    _ended: dict[str, ExecutionState] = field(default_factory=dict[str, ExecutionState])
    _seen_takes: int = 0
    _seen_deaths: set[int] = field(default_factory=set[int])
    _seen_logs: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def testimony(self) -> Testimony:
        return self.stage.testimony

    async def breaches(self) -> list[str]:
        """Every promise that was broken; empty when all held."""
        records, ledger = self.stage.records, Ledger.of(self.stage.folder)
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
            *self._used_too_often(),
            *self._after_giving_up(done),
            *self._not_as_logged(done),
            *self._robbed(ledger),
            *self._two_for_one_key(),
            *self._not_cancelled(),
            *(() if self.stage.database is None else (*self._asked_needlessly(ledger), *self._died())),
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
        granted = list[Line]()
        for line in done:
            if line.facts["tool"] in NEEDS_CONSENT:
                execution_id, step_id, _ = line.key.split(":")
                consent = (execution_id, step_id, line.facts["tool"], canonical_json(line.facts["arguments"]))
                if consent in self.testimony.consents:
                    continue
                if line.facts["tool"] == "send" and line.facts["arguments"]["to"] == STANDING:
                    granted.append(line)
                else:
                    yield f"unapproved: {line.key} ran {line.facts['tool']} with {line.facts['arguments']}"
        if len(granted) > self.testimony.granted:
            keys = [line.key for line in granted]
            yield f"unapproved: {len(granted)} calls ran by grants for {self.testimony.granted}: {keys}"

    def _used_too_often(self) -> Iterator[str]:
        calls = [
            (call.grant_id, f"{execution_id}:{call.call_id}")
            for execution_id, state in self._ended.items()
            for call in _effects(state)
            if call.grant_id is not None
        ]
        for grant_id, count in Counter(grant_id for grant_id, _ in calls).items():
            if count > GRANTED_USES:
                keys = [key for found, key in calls if found == grant_id]
                yield f"grant: {grant_id} allows {GRANTED_USES} calls and let {count} through: {keys}"

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
        takes = self._list_takes(ledger) if self.stage.launcher.patience != "hasty" else []
        for taker, previous, execution_id, at in takes[self._seen_takes :]:
            robbed = self.stage.launcher.started.get(previous)
            if robbed is not None and not robbed.was_hurt(at, MARGIN_S) and not robbed.has_ended and taker != previous:
                yield f"robbed: {execution_id} was taken by process {taker} from process {previous}, which lives"
        self._seen_takes = len(takes)

    def _list_takes(self, ledger: Ledger) -> list[tuple[int, int, str, float]]:
        """Who took which execution from whom, and when; processes by their ids."""
        owners = {line.facts["owner"]: line.pid for line in ledger.lines("owner")}
        if self.stage.database is None:
            lines = ledger.lines("took")
            return [(li.pid, owners.get(li.facts["previous"], 0), li.facts["execution"], li.at) for li in lines]
        takes = self.stage.database.list_takes()
        return [(take.taker, owners.get(take.previous, 0), take.execution_id, take.at) for take in takes]

    def _asked_needlessly(self, ledger: Ledger) -> Iterator[str]:
        """Whether a call happened was asked although its process lived, was never hurt, and ended it in time."""
        lines = {what: {line.key: line for line in ledger.lines(what)} for what in ("begun", "ended")}
        since = time.time() - time.monotonic()
        for execution_id, state in self._ended.items() if self.stage.launcher.patience != "hasty" else ():
            for found in state.suspensions.values():
                key, asked_at = f"{execution_id}:{found.question.call_id}", found.created_at - since
                begun, ended = lines["begun"].get(key), lines["ended"].get(key)
                if found.question.kind != "reconcile" or begun is None or ended is None or begun.at > asked_at:
                    # What began later was repeated by the answer.
                    continue
                process = self.stage.launcher.started.get(begun.pid)
                if (
                    process is not None
                    and ended.at - begun.at < CALL_S / 2
                    and not any(since <= asked_at for since, _ in process.hurts)
                ):
                    yield f"asked needlessly: whether {key} happened, and process {begun.pid} knew it"

    def _died(self) -> Iterator[str]:
        for server in self.stage.servers:
            process = server.process
            if process.has_ended and not process.was_ended and process.pid not in self._seen_deaths:
                self._seen_deaths.add(process.pid)
                yield f"died: {server.kind} {process.pid} ended with {process.exit_code}"

    def _two_for_one_key(self) -> Iterator[str]:
        for key, names in self.testimony.keys.items():
            if len(names) > 1:
                yield f"two for one key: {key} started {sorted(names)}"

    def _not_cancelled(self) -> Iterator[str]:
        for execution_id in self.testimony.cancelled:
            state = self._ended.get(execution_id)
            if state is not None and not state.cancel_requested:
                yield f"lost: the end of {execution_id} was acknowledged, it is {state.status}"

    def _faults(self) -> Iterator[str]:
        for path in sorted((self.stage.folder / "logs").iterdir()):
            text = path.read_text(encoding="utf-8", errors="replace")
            news, self._seen_logs[path.name] = text[self._seen_logs.get(path.name, 0) :], len(text)
            if (found := _FAULT.search(news)) is not None:
                yield f"fault: {path.name} says {news[max(0, found.start() - 200) :][:1500]!r}"

    async def _command(self, arguments: list[str]) -> list[str]:
        process = self.stage.launcher.without_input(*arguments, "--json")
        try:
            code = await process.wait(COMMAND_S)
        except Lost as error:
            return [f"{' '.join(arguments)}: {error}"]
        said = process.read_output()
        if code == 0:
            return []
        document = json.loads(said or "{}")
        broken = [check for check in document.get("checks", []) if check["status"] == "broken"]
        return [f"{' '.join(arguments)}: exit code {code}: {str(broken or document)[:600]}"]


def _effects(state: ExecutionState) -> Iterator[Call]:
    for step in state.steps.values():
        yield from (call for call in step.calls if call.tool_name in EFFECTS)
