"""Published attack vectors (`agent-evidence-vectors`), each run through planwarden's own code.

The package brings records of approvals and dispatches, and the decision that each should get. Each record is played:
what it says was approved, granted, leased or called happens to a real store in memory, at its times; then planwarden is
asked to let happen what it says was done. The package's own code is not used.
"""

import base64
import hashlib
import json
import tomllib
from collections.abc import Awaitable, Callable
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import JsonValue
from tests.kit import (
    Decision,
    ManualClock,
    MemoryStore,
    Settings,
    Tool,
    Warden,
    by,
    calls,
    decide,
    define,
    ev,
    model_step,
    plan,
    says,
    statuses,
    tool_step,
    warden,
)
from tests.storage.suite import Scribe

import planwarden
from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import LeaseLost, PlanwardenError, VersionConflict
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.api.grants import GrantRequest
from planwarden.server.guard.calls import GuardedCall, build_call
from planwarden.server.guard.guard import HostGuard, build_guard
from planwarden.storage.clock import LEASE_S
from planwarden.tools.guarded.hosts import PASS_LIFETIME_S

Outcome = Literal["refused", "allowed", "no axis", "differs", "hole"]
HOME, FOLDER = Path("/nonexistent/home"), "/nonexistent/project"
Record = dict[str, Any]
REASONS: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads(
    Path(__file__).with_name("reasons.toml").read_text(encoding="utf-8")
)
"""Why a vector is without an axis, or differs: by the outcome, then by suite, the vectors of each reason."""


class Vector(msgspec.Struct, frozen=True):
    """One published case."""

    name: str
    folder: Traversable
    is_allowed: bool
    """What should be decided."""

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    @property
    def record(self) -> Record:
        return json.loads(self.read("record.json"))


def read_vectors(suite: str) -> list[Vector]:
    folder = files("agent_evidence_vectors") / "corpora" / f"vectors-{suite}"
    vectors: list[Vector] = []
    for row in json.loads((folder / "MANIFEST.json").read_bytes())["vectors"]:
        expected = row["expected"]
        # The completion claims rest on commands that a contract names; a plan names its own tools.
        is_allowed = (
            expected["decision"] == "allow"
            if "decision" in expected
            else expected["checks"]["tool_claim_match/v1"]["decision"] == "supported"
        )
        vectors.append(Vector(row["id"], folder / "cases" / row["id"], is_allowed))
    return vectors


def to_seconds(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def move_to(clock: ManualClock, at: float) -> None:
    clock.advance(max(0.0, at - clock.now()))


class Desk(msgspec.Struct):
    """A guard whose host is about to act, and the person who decides."""

    clock: ManualClock
    warden: Warden
    guard: HostGuard

    async def approve(self, call: GuardedCall, principal: str, person: str, assurance: ev.Assurance) -> None:
        """Ask about the call, and answer the question twice."""
        asked = await self.guard.decide(call, principal)
        assert asked.suspension_id is not None, asked
        row = await self.warden.service.store.find_suspension(asked.suspension_id)
        assert row is not None
        for _ in range(2):
            await decide(self.warden, row, authority=by(person, assurance), principal=None)

    async def passes(self, call: GuardedCall, principal: str) -> bool:
        return (await self.guard.decide(call, principal)).then == "allow"


def build_call_of(facts: Record, payload: str) -> GuardedCall:
    return build_call("claude-code", facts["tool"], {"target": facts["target"], "payload": payload}, FOLDER)


async def play_with_guard(vector: Vector, at: str, play: Callable[[Desk, Record, str], Awaitable[bool]]) -> bool:
    record = vector.record
    clock = ManualClock(to_seconds(at))
    settings = Settings(home=HOME)
    used = record.get("use") or record["dispatch"]
    payload = hashlib.sha256(vector.read(used["payloadFile"])).hexdigest()
    async with planwarden.Warden(settings=settings, store=MemoryStore(clock)) as opened:
        return await play(Desk(clock, opened, build_guard(settings, opened.service)), record, payload)


async def play_approval(vector: Vector) -> bool:
    """The guard asks about the approved call, a person answers, and the host makes the call that was used."""
    issued = vector.record["approval"]["issuedAt"]

    async def play(desk: Desk, record: Record, payload: str) -> bool:
        approval, use = record["approval"], record["use"]
        used = build_call_of(use, payload)
        used_at = to_seconds(use["usedAt"])
        if used_at < to_seconds(issued):
            return await desk.passes(used, use["principal"])
        for presented in {json.dumps(shown, sort_keys=True): shown for shown in record["presentedApprovals"]}.values():
            is_bound = record["trustedKeys"].get(presented["approver"]) == presented["keyId"]
            approved = build_call_of(presented, presented["payloadSha256"])
            assurance: ev.Assurance = "human" if is_bound else "claimed"
            await desk.approve(approved, presented["principal"], presented["approver"], assurance)
        if approval["approvalId"] in record["consumedApprovalIds"]:
            await desk.passes(build_call_of(approval, approval["payloadSha256"]), approval["principal"])
        # An approval of the guard always holds for an hour: the use keeps its distance from the end.
        move_to(desk.clock, to_seconds(issued) + PASS_LIFETIME_S + used_at - to_seconds(approval["expiresAt"]))
        return await desk.passes(used, use["principal"])

    return await play_with_guard(vector, issued, play)


async def play_authority(vector: Vector) -> bool:
    """A person makes a standing grant of the last hop's call; it ends or is revoked; the host makes its call."""
    last = vector.record["delegation"][-1]

    async def play(desk: Desk, record: Record, payload: str) -> bool:
        approved, dispatch, now = record["approvedAction"], record["dispatch"], to_seconds(record["decisionTime"])
        call = build_call_of(approved, approved["payloadSha256"])
        request = GrantRequest(
            tool_name=call.name,
            arguments=call.arguments,
            uses=1,
            expires_in_s=to_seconds(last["expiresAt"]) - to_seconds(last["notBefore"]),
        )
        grant = await desk.warden.service.grants.make(request, by(last["grantor"]))
        for revoked in record["authorityEvidence"]["revokedGrants"]:
            if to_seconds(revoked["revokedAt"]) <= now:
                move_to(desk.clock, to_seconds(revoked["revokedAt"]))
                await desk.warden.service.grants.revoke(grant.grant_id, by(last["grantor"]))
        move_to(desk.clock, now)
        return await desk.passes(build_call_of(dispatch, payload), "local")

    return await play_with_guard(vector, last["notBefore"], play)


async def play_fence(vector: Vector) -> bool:
    """A process takes the lease of an execution, acts and commits; another one tries to take it over.

    A lease lasts 15 seconds and is renewed while its process lives: times are scaled, renewals are as many as it takes.
    """
    record = vector.record
    fence, start = record["fence"], to_seconds(record["fence"]["acquiredAt"])
    scale = LEASE_S / fence["ttlSeconds"]
    clock = ManualClock(start)
    store = MemoryStore(clock)
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    # Only the two numbers' distance counts. Who moved the state meanwhile wrote to the same execution.
    late = Scribe(store, scribe.execution, lease=scribe.lease)
    for _ in range(fence["appendSeq"] - record["check"]["readSeq"]):
        await scribe.write(ev.CancelRequested())
    end = max([LEASE_S, *((to_seconds(renewal["expiresAt"]) - start) * scale for renewal in fence["renewals"])])
    moments = [(at, "renew") for at in range(5, int(end - LEASE_S) + 1, 5)] + [(end - LEASE_S, "renew")]
    moments += [
        ((to_seconds(other["beganAt"]) - start) * scale, "attempt")
        for other in record["otherAttempts"]
        if other["proposalId"] != record["proposalId"]
    ]
    try:
        await late.write(ev.ToolCallIntended(call_id="a:1", arguments={}))
        for at, what in sorted(moments):
            move_to(clock, start + at)
            if what == "renew":
                await store.renew(late.owner, ["e1"])
            elif await store.claim("e1", "p2") is None:
                return False
        move_to(clock, start + (to_seconds(record["commit"]["at"]) - start) * scale)
        await late.write(ev.ToolReturned(call_id="a:1"))
    except (VersionConflict, LeaseLost):
        return False
    return True


async def play_conversion(vector: Vector) -> bool:
    """A plan calls a tool with the model's arguments; a person decides. Whether what ran is what the record says ran,
    and what was shown is what it says was shown."""
    record, ran = vector.record, list[str]()
    parameters: dict[str, JsonValue] = record["parameters"]
    schema: dict[str, JsonValue] = {"type": "object", "properties": parameters, "additionalProperties": False}

    async def run(arguments: dict[str, JsonValue], _: object) -> str:
        ran.append(canonical_json(arguments))
        return "done"

    tool = Tool(define(ToolDefinition(name="act", description="Act.", input_schema=schema)), run)
    approval, shown = record["approval"], vector.read("shown.json")
    try:
        raw, is_modified = read_json(vector.read("raw.json")), approval["decision"] == "modify"
        approved = read_json(vector.read("modified.json") if is_modified else shown)
        read_json(shown)
        async with warden(tools=[tool]) as opened:
            execution = await opened.execute_plan(plan(tool_step("a", "act", raw)), wait_seconds=60)
            [question] = execution.suspensions
            seen = question.digest if approval["shownSha256"] == hashlib.sha256(shown).hexdigest() else "0" * 64
            assert isinstance(approved, dict)
            decision = Decision(approved=True, modified_args=approved if is_modified else None)
            execution = await decide(opened, execution, decision, by(digest=seen))
            for question in execution.suspensions:
                # What a person changed is shown once more, as it will run.
                execution = await decide(opened, execution, authority=by(digest=question.digest))
    except PlanwardenError:
        return False
    return ran == [canonical_json(read_json(vector.read("executed.json")))] == [canonical_json(approved)]


async def play_claims(vector: Vector) -> bool:
    """A plan requires the runs that the agent claims; what was observed is what it called. Whether the step is proven.

    Each command is a tool, whose name is its digest; one that ended with another exit code than 0 failed.
    """
    claims = json.loads(vector.read("claims.json"))["claims"]
    runs = [event for event in json.loads(vector.read("observation.json"))["events"] if event["type"] == "exec"]
    exits: dict[str, list[int | None]] = {}
    for run in runs:
        exits.setdefault(_name(run["argv"]), []).append(run.get("exit"))
    wanted = [_name(claim["argv"]) for claim in claims]

    def build(name: str) -> Tool:
        async def run(_: dict[str, JsonValue], __: object) -> str:
            if (code := exits[name].pop(0)) != 0:
                raise planwarden.ToolError(f"it ended with {code}")
            return "it passed"

        schema: dict[str, JsonValue] = {"type": "object", "additionalProperties": False}
        return Tool(define(ToolDefinition(name=name, description="Run.", input_schema=schema, risk="read")), run)

    names = dict.fromkeys([*exits, *wanted])
    script = [*(calls((_name(run["argv"]), {})) for run in runs), *[says("All tests passed, done.")] * 5]
    step = model_step("a", *dict.fromkeys(wanted))
    async with warden(tools=[build(name) for name in names], script=script) as opened:
        execution = await opened.execute_plan(plan(step), wait_seconds=60)
        return statuses(execution)["a"] == "completed"


def _name(argv: list[str]) -> str:
    return "run_" + base64.b32encode(hashlib.sha256(json.dumps(argv).encode()).digest())[:16].decode().lower()


SUITES: dict[str, Callable[[Vector], Awaitable[bool]]] = {
    "approval-binding": play_approval,
    "authority-at-dispatch": play_authority,
    "dispatch-fence": play_fence,
    "converted-argument-binding": play_conversion,
    "spoofed-tool-output": play_claims,
}


async def judge(suite: str, vector: Vector) -> Outcome:
    """Return what planwarden does with the vector."""
    if _has_reason("no axis", suite, vector):
        return "no axis"
    lets_pass = await SUITES[suite](vector)
    if lets_pass == vector.is_allowed:
        return "allowed" if lets_pass else "refused"
    return "differs" if _has_reason("differs", suite, vector) else "hole"


def _has_reason(outcome: Outcome, suite: str, vector: Vector) -> bool:
    return any(vector.name in names for names in REASONS[outcome].get(suite, {}).values())
