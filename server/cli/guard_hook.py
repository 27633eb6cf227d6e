"""What `planwarden guard hook` answers: one event of a host on standard input, and a refusal for everything odd."""

import logging
from argparse import Namespace
from typing import BinaryIO

import anyio

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.guard.calls import MAX_EVENT_BYTES, GuardedCall, read_event
from planwarden.server.guard.judging import Judge
from planwarden.server.guard.protected_paths import OwnThings
from planwarden.server.guard.verdict import CommandAnswer, Verdict, build_command_answer, deny
from planwarden.server.inbox.inbox_port import InboxPlace
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.storage.opening import open_store

logger = logging.getLogger(__name__)


def answer_hook(arguments: Namespace, stream: BinaryIO) -> CommandAnswer:
    """Return the answer to the event on the stream; never raises."""
    host = str(arguments.host)
    try:
        call = read_event(host, stream.read(MAX_EVENT_BYTES + 1))
        verdict = _decide(load_settings(home=arguments.home, store=arguments.store, has_servers=False), call)
    except PlanwardenError as error:
        verdict = deny(f"Refused, because it could not be judged: {error.message}")
    # Whatever goes wrong blocks the call.
    except Exception as error:
        logger.exception("the hook failed")
        verdict = deny(f"Refused, because the guard failed: {type(error).__name__}")
    return build_command_answer(host, verdict)


def _decide(settings: Settings, call: GuardedCall) -> Verdict:
    verdict = Judge(settings.policy, OwnThings(settings.home, settings.environment)).judge(call)
    if verdict is None:
        return anyio.run(_ask, settings, call)
    if verdict.facts is not None:
        anyio.run(_record, settings, verdict)
    return verdict


async def _ask(settings: Settings, call: GuardedCall) -> Verdict:
    # Most calls are judged without an engine.
    from planwarden.server.guard.opening import open_guard

    record = InboxPlace(settings).read()
    async with open_guard(settings, None if record is None else record.url) as guard:
        return await guard.decide(call, LOCAL)


async def _record(settings: Settings, verdict: Verdict) -> None:
    assert verdict.facts is not None
    async with open_store(settings.store) as store:
        await store.audit((AuditEntry(kind="guarded", facts=verdict.facts),))
