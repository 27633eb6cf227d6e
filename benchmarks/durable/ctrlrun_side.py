"""CTRLRun: https://docs.ctrlrun.dev/get-started/quickstart and https://docs.ctrlrun.dev/concepts/outcomes-and-ambiguous"""

import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import ctrlrun
from workload import JOB, REFUSED, SENT, STEPS, Question, System, save_file, watch

POLICY = """schema: ctrlrun.policy/v2
actions: {refund.send: {effect: "refund:{order}", rules: [{decision: approve}]}}
"""
KEY = f"refund:{JOB}"
LEASE_S = 1.0
BY = "cli:person"


class Adapter(System):
    """The application runs the five steps, and again after a crash; CTRLRun protects the refund."""

    _is_uncertain = False

    async def open(self) -> None:
        self._path = self.folder / "request_id.txt"
        self._store: Any = ctrlrun.SQLiteStateStore(self.folder / "state.db")
        watch(self._store, "put_approval_request", lambda *_: ("before asking", "asked"))
        watch(self._store, "grant_approval", lambda *_: (None, "decided"))
        watch(self._store, "commit_effect")
        policy = self.folder / "ctrlrun.yaml"
        policy.write_text(POLICY, encoding="utf-8")
        control = ctrlrun.Control(ctrlrun.Policy.from_file(policy), self._store)
        lease = timedelta(seconds=LEASE_S)
        protect = ctrlrun.protect("refund.send", effect="refund:{order}", control=control, lease=lease)
        self._send: Any = protect(STEPS["send_refund"])

    async def advance(self) -> None:
        STEPS["look_up_order"](JOB)
        STEPS["check_stock"](JOB)
        self._refund()
        STEPS["add_note"](JOB)
        STEPS["summarise"](JOB)

    def _refund(self) -> None:
        effect, status = self._store.get_effect(KEY), self._status()
        if status in ("pending", "denied") or (effect and effect.state is ctrlrun.EffectState.COMMITTED):
            return
        if effect and effect.state is ctrlrun.EffectState.EXECUTING:
            # A dead process has it, until the lease runs out.
            time.sleep(LEASE_S)
        presents = ctrlrun.with_approval(self._path.read_text()) if status == "granted" else nullcontext()
        try:
            with ctrlrun.context(agent="refunds"), presents:
                self._send(order=JOB)
        except ctrlrun.ApprovalRequired as pending:
            save_file(self._path, pending.request_id)
        except ctrlrun.AmbiguousEffect:
            self._is_uncertain = True
        except ctrlrun.DuplicateEffect as refusal:
            if refusal.state != "committed":
                raise

    def _status(self) -> str:
        return self._store.get_approval(self._path.read_text()).status if self._path.exists() else ""

    async def question(self) -> Question | None:
        if self._is_uncertain:
            return "outcome"
        return "approve" if self._status() == "pending" else None

    async def answer(self, yes: bool) -> None:
        if self._is_uncertain:
            state = ctrlrun.EffectState.COMMITTED if yes else ctrlrun.EffectState.FAILED
            self._store.resolve_effect(KEY, state, BY)
            self._is_uncertain = False
        else:
            (self._store.grant_approval if yes else self._store.deny_approval)(self._path.read_text(), BY)
        await self.advance()

    async def result(self) -> str | None:
        effect = self._store.get_effect(KEY)
        if effect is not None:
            return SENT if effect.state is ctrlrun.EffectState.COMMITTED else None
        return REFUSED if self._status() == "denied" else None
