"""The people of a campaign: they decide through every channel, often several at once, and never lie.

Whether a call without a result happened is looked up in the ledger, as a careful operator looks into the booking
system; while somebody may still carry it out, the person waits.
"""

import json
import os
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio
import httpx2

from planwarden.agent.core.execution import events as ev
from tests.harness.clients import Document, HttpHost, Refused, StdioHost
from tests.harness.ledger import Ledger
from tests.harness.process import Lost, Process
from tests.harness.records import Pending
from tests.harness.stage import Stage
from tests.server.inbox.support import read

Channel = Callable[["Question", bool], Awaitable[None]]

LOOK_S = 0.05
COMMAND_S = 20.0
GRANTED_USES = 2
"""Of each grant."""
STANDING = "Standing"
"""To whom a person allows some letters beforehand, of any amount."""
FAILURES = (Lost, Refused, OSError, httpx2.HTTPError)
"""Whatever a dying process or a full disk does to one person's attempt, the question is looked at again."""


@dataclass(frozen=True)
class Question:
    row: Pending
    asked: ev.Question
    happened: bool | None = None
    """Of a `reconcile`: the truth."""

    @property
    def call_key(self) -> str:
        return f"{self.row.execution_id}:{self.asked.call_id}"


@dataclass
class People:
    """Look at the open questions again and again, and answer them in their own time."""

    stage: Stage
    chance: random.Random
    is_hasty: bool = False
    """Nobody waits, nobody errs: the round is being settled."""
    _busy: set[str] = field(default_factory=set[str])
    _form: anyio.Lock = field(default_factory=anyio.Lock)
    _on_form: tuple[Question, bool] | None = None
    """The question whose form the person expects, and what the person will enter."""
    _form_was_shown: bool = False

    def __post_init__(self) -> None:
        self.stage.answer_form, self.testimony = self.answer_form, self.stage.testimony

    async def answer_all(self) -> None:
        """Run until cancelled."""
        records = self.stage.records
        while True:
            for row in records.pending():
                if row.suspension_id not in self._busy:
                    self._busy.add(row.suspension_id)
                    self.stage.tasks.start_soon(self._attend, row)
            await anyio.sleep(LOOK_S)

    async def _attend(self, row: Pending) -> None:
        """One question, once; when it stays open, it is attended to again."""
        try:
            await anyio.sleep(0 if self.is_hasty else self.chance.random() * 0.6)
            found = self.stage.records.state(row).suspensions.get(row.suspension_id)
            if found is None or not found.is_open:
                return
            question = Question(row, found.question)
            if found.question.kind == "reconcile":
                happened = Ledger.of(self.stage.folder).has_happened(question.call_key)
                if happened is None:
                    return
                question = Question(row, found.question, happened)
            await self._decide(question)
            await anyio.sleep(LOOK_S)
        except FAILURES as error:
            self.testimony.troubles.append(f"{row.suspension_id[:8]}: {error!r}")
        finally:
            self._busy.discard(row.suspension_id)

    async def _decide(self, question: Question) -> None:
        """One or more channels at the same time, which may contradict each other."""
        channels: list[Channel] = [self.in_inbox]
        if not self.is_hasty:
            known: list[Channel] = [self.in_inbox, self.in_inbox, self.at_terminal, self.by_claim, self.in_form]
            channels = self.chance.sample(known, self.chance.choice((1, 1, 2, 3)))
        async with anyio.create_task_group() as tasks:
            for channel in channels:
                verdict = self.is_hasty or self.chance.random() < 0.8
                tasks.start_soon(self._try, channel, question, verdict)

    async def _try(self, channel: Channel, question: Question, verdict: bool) -> None:
        try:
            await channel(question, verdict)
        except FAILURES as error:
            self.testimony.troubles.append(f"{question.row.suspension_id[:8]} {channel.__name__}: {error!r}")

    async def grant(self) -> None:
        """Allows a few letters beforehand, at a terminal."""
        words = f"grant add send --arg to={STANDING} --any amount --uses {GRANTED_USES} --for 1h".split()
        process = self.stage.launcher.with_terminal(*words)
        self.testimony.granted += GRANTED_USES
        await self._type_answers(process, {"Allow them? [": "y"})
        await process.wait(COMMAND_S)

    async def in_inbox(self, question: Question, verdict: bool) -> None:
        """On the page of any HTTP server."""
        servers = self.stage.living("http", "front")
        if not servers:
            raise Lost("no inbox runs")
        server = self.chance.choice(servers)
        path = f"{server.url}/inbox/suspensions/{question.row.suspension_id}"
        page = read(await self.stage.browser.get(path))
        forms = [form for form in page.forms if form.action.endswith("/decision")]
        if not forms or forms[0].fields["digest"] != [question.asked.digest]:
            raise Lost(f"the page shows something else: {page.status} {' '.join(page.words.split())[:300]}")
        fields = {name: values[0] for name, values in forms[0].fields.items()}
        fields["decision"] = "approve" if verdict else "reject"
        if question.happened is not None:
            result = json.dumps({"receipt": question.call_key}) if question.happened else ""
            fields |= {"happened": "yes" if question.happened else "no", "result": result}
        elif question.asked.form is not None:
            fields |= {name: "7" for name in fields if name.startswith("arg.")}
        self._agree(question, verdict)
        answer = await self.stage.browser.post(f"{path}/decision", data=fields)
        if answer.status_code == 303:
            self._acknowledge(question, verdict, "inbox")
        else:
            raise Lost(f"the inbox did not take it: {answer.status_code}")

    async def at_terminal(self, question: Question, verdict: bool) -> None:
        """With `approve` or `reject`, typed at a terminal."""
        suspension_id = question.row.suspension_id
        if question.asked.form is not None and question.happened is None:
            return
        if not verdict and question.happened is None:
            process = self.stage.launcher.without_input("reject", suspension_id)
            if await process.wait(COMMAND_S) == 0:
                self._acknowledge(question, False, "terminal")
            return
        self._agree(question, True)
        process = self.stage.launcher.with_terminal("approve", suspension_id)
        prompts = {"Approve? [": "y", "Did it happen? [": "y" if question.happened else "n", "Its result": ""}
        said = await self._type_answers(process, prompts)
        if await process.wait(COMMAND_S) in (0, 3) and _has_decided(said):
            self._acknowledge(question, True, "terminal")

    async def _type_answers(self, process: Process, prompts: dict[str, str]) -> str:
        """Everything that the terminal showed. `prompts` are what it asks, and the answers."""
        said, seen = "", 0
        with anyio.move_on_after(COMMAND_S):
            while not process.has_ended:
                await anyio.sleep(LOOK_S)
                said += process.read_output()
                for prompt, answer in prompts.items():
                    if prompt in said[seen:]:
                        seen = len(said)
                        os.write(process.inlet, f"{answer}\n".encode())
        return said + process.read_output()

    async def by_claim(self, question: Question, verdict: bool) -> None:
        """As a model would: it says that somebody approved. Over HTTP, where no form can be shown."""
        await self._claim([server.http for server in self.stage.living("http", "front")], question)

    async def _claim(self, hosts: Sequence[HttpHost | StdioHost | None], question: Question) -> Document:
        host = self.chance.choice(hosts) if hosts else None
        if host is None:
            raise Lost("no server runs")
        arguments = {"threadId": question.row.thread_id, "suspensionId": question.row.suspension_id, "waitSeconds": 0}
        return await host.call("resume_execution", {**arguments, "decision": {"approved": True}})

    async def in_form(self, question: Question, verdict: bool) -> None:
        """In the form that a host shows when its model asks; for questions that a form may decide."""
        hosts = [server.stdio for server in self.stage.living("stdio")]
        if not hosts or question.asked.kind == "reconcile":
            return
        async with self._form:
            self._on_form = (question, verdict)
            self._form_was_shown = False
            decided = await self._claim(hosts, question)
            is_open = any(
                found["suspensionId"] == question.row.suspension_id for found in decided.get("suspensions", [])
            )
            if self._form_was_shown and not is_open and not self._was_decided_elsewhere(question):
                self._acknowledge(question, verdict, "form")

    def _was_decided_elsewhere(self, question: Question) -> bool:
        """Another channel decided, or somebody cancelled, while the form was open, which is void then."""
        found = self.stage.records.state(question.row).suspensions.get(question.row.suspension_id)
        if found is None:
            return False
        return found.status == "withdrawn" or (found.decision is not None and found.channel != "elicitation")

    async def answer_form(self, params: Document) -> Document:
        await anyio.sleep(0 if self.is_hasty else self.chance.random() * 0.5)
        wanted = params.get("requestedSchema", {}).get("properties", {})
        # A form may come late, when the person has turned to another question.
        if self._on_form is None or not wanted or not _is_about(params["message"], self._on_form[0]):
            return {"action": "decline"}
        question, verdict = self._on_form
        self._agree(question, verdict)
        self._form_was_shown = True
        content = {"decision": "approve" if verdict else "reject"}
        return {"action": "accept", "content": content | ({"name": "Ada"} if "name" in wanted else {})}

    def _agree(self, question: Question, verdict: bool) -> None:
        if verdict:
            self.testimony.agree(question.row.execution_id, question.asked)

    def _acknowledge(self, question: Question, verdict: bool, channel: str) -> None:
        self.testimony.acknowledge(question.row.suspension_id, verdict, channel)
        self.testimony.reconciled += question.happened is not None
        if question.happened is False and not verdict:
            self.testimony.surrender(question.call_key)


def _is_about(message: str, question: Question) -> bool:
    """Whether a form shows this question: every plan has numbers of its own."""
    numbers = re.findall(r"\d{3,}", json.dumps(question.asked.arguments))
    return all(number in message for number in numbers)


def _has_decided(said: str) -> bool:
    """Whether the terminal took the typed answer, and not an earlier one or the time-out."""
    return ("Approve? [" in said or "Did it happen? [" in said) and not any(
        word in said for word in ("before", "expired", "has passed", "decided", "stays open")
    )
