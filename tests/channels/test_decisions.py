"""Each case over each channel: what must be observable in the ledger, the log, the audit and the views."""

import re
from pathlib import Path

import pytest

from planwarden.server.mcp.elicitation import compute_form_digest
from planwarden.server.views.question_text import hash_question
from tests.channels.channels import CHANNELS, Channel, Outcome, Stage, Turn, build_decision, open_stage
from tests.channels.suite import CASES, UNSEEN, WORTH_CLIENT, Cannot, Case
from tests.kit import Suspension, by, decide, ev, governed, plan, read_audit_page, verify_audit

PAIRS = [
    pytest.param(
        case,
        channel,
        id=f"{case.name}-{channel.name}",
        marks=[pytest.mark.requirement(name) for name in case.requirements],
    )
    for case in CASES
    for channel in CHANNELS
]


@pytest.mark.parametrize(("case", "channel"), PAIRS)
async def test_a_decision_does_what_it_must_or_the_channel_does_not_take_it(
    tmp_path: Path, case: Case, channel: Channel
) -> None:
    cannot = case.cannot.get(channel.name)
    async with open_stage(tmp_path, governed(tmp_path, **case.policy)) as stage:
        asked = await stage.ask(plan(*case.steps), case.options, case.principal)
        for turn in case.turns:
            await turn.before(stage)
            question = next(iter((await stage.look(case.principal)).suspensions), asked)
            outcomes = await channel.decide(stage, question, turn)
            if channel.is_drawn:
                assert not [hidden for hidden in UNSEEN for outcome in outcomes if hidden in outcome.shown]
            if cannot is not None:
                if cannot is WORTH_CLIENT:
                    # A host that was asked nothing answers all the same.
                    word = by("local", channel.assurance, channel.recorded_as)
                    await decide(stage.warden, question, build_decision(question, turn.answers[0]), word)
                await check_refusal(stage, channel, cannot, outcomes)
                break
            await check_turn(stage, case, channel, turn, outcomes)
        if cannot is None:
            await check_record(stage, case, channel, asked)
        assert (await verify_audit(stage.warden.service.store)).problems == ()


async def check_turn(stage: Stage, case: Case, channel: Channel, turn: Turn, outcomes: list[Outcome]) -> None:
    """Check what is observable after the answers of one look."""
    await stage.warden.service.tick()
    execution = await stage.look(case.principal)
    assert (tuple(stage.ledger.lines), execution.status) == (turn.ledger, turn.status), outcomes
    if not channel.is_quiet:
        assert re.search(turn.said, outcomes[-1].said), outcomes
    for pattern in turn.shows if channel.is_drawn else ():
        assert re.search(pattern, outcomes[0].shown), outcomes[0].shown


async def check_refusal(stage: Stage, channel: Channel, cannot: Cannot, outcomes: list[Outcome]) -> None:
    """Check that nothing was released, beyond what the row says."""
    assert tuple(stage.ledger.lines) == cannot.ledger, outcomes
    decided = await stage.events(ev.SuspensionDecided)
    approvals = [event for event in decided if event.decision.approved and event.channel == channel.recorded_as]
    assert cannot.ledger or approvals == []
    claims = [row.facts for row in (await read_audit_page(stage.warden.service.store)).rows if row.kind == "refused"]
    told = {"assurance": "claimed", "channel": "mcp", "principal": "local"}
    assert all(facts.items() >= told.items() and facts.keys() - told.keys() == {"policy"} for facts in claims)
    assert claims or channel.assurance != "claimed" or "must decide" not in outcomes[0].said


async def check_record(stage: Stage, case: Case, channel: Channel, asked: Suspension) -> None:
    """Check what log, audit, and views say of the decision, if there was one."""
    decided, last = await stage.events(ev.SuspensionDecided), case.turns[-1]
    if not last.ledger and last.status == "suspended":
        assert decided == []
        return
    execution = await stage.look(case.principal)
    if last.status != "suspended":
        assert execution.suspensions == () and (await stage.warden.list_suspensions()).total == 0
    question = (await stage.find()).suspensions[asked.suspension_id].question
    for event in decided:
        if event.channel != channel.recorded_as or event.suspension_id != asked.suspension_id:
            continue
        named = last.by if channel.names_people else "local"
        worth = case.assurance or channel.assurance
        assert (event.assurance, event.channel, event.principal) == (worth, channel.recorded_as, named)
        assert event.digest == question.digest
        assert bool(event.rendered) == (channel.assurance in ("client", "human"))
        if event.rendered and question.revision == len(case.turns) == 1:
            # What was shown is the question as every channel draws it, or the short form of it.
            assert any(
                text.startswith(event.rendered) for text in (hash_question(asked.card), compute_form_digest(asked))
            )
        resumed = [seen.data for seen in execution.observations or () if seen.type == "AGENT_RESUMED"]
        assert [(data["assurance"], data["channel"]) for data in resumed] == [(worth, channel.recorded_as)]
    kinds = [row.kind for row in (await read_audit_page(stage.warden.service.store)).rows]
    assert kinds.count("decided") == len(decided)
    if case.check is not None:
        await case.check(stage)


def test_every_row_names_a_channel_and_says_why_it_cannot() -> None:
    names = {channel.name for channel in CHANNELS}
    assert all(case.cannot.keys() <= names and all(found.why for found in case.cannot.values()) for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES)
