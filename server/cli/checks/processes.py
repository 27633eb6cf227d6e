"""The checks of `doctor` for a store that several processes share: its secrets, who lives, and what waits for whom."""

from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.api.peers import describe_missing
from planwarden.server.cli.checks.report import HealthCheck
from planwarden.server.cli.home import use_store
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.escaping import shorten_id
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.storage.opening import CompleteStore
from planwarden.storage.sealing import SealedSecrets
from planwarden.storage.secret_files import SECRET_KEY_VARIABLE
from planwarden.storage.sql.processes import ProcessFacts, registry_of

MAX_WAITING = 20
"""Executions without an owner that are looked at."""
SHOWN_DIGITS = 12


def check_secrets(settings: Settings) -> HealthCheck | None:
    """Say whether the secrets are sealed; nothing for a store of one machine."""
    if settings.store.path is not None:
        return None
    key = settings.environment.get(SECRET_KEY_VARIABLE, "")
    if use_store(settings, lambda store: SealedSecrets(store, key).is_in_use()):
        return HealthCheck("secrets", "ok", f"{SECRET_KEY_VARIABLE} is the key of this store")
    text = f"the store has no key yet; the first server or worker makes {SECRET_KEY_VARIABLE} its key"
    return HealthCheck("secrets", "off", text)


def check_processes(settings: Settings) -> HealthCheck | None:
    """Say who lives, and what waits for whom; nothing for a store of one machine."""
    if settings.store.path is not None:
        return None

    async def read(store: CompleteStore) -> tuple[tuple[ProcessFacts, ...], dict[str, str]]:
        registry = registry_of(store)
        living = () if registry is None else await registry.living()
        return living, await _find_waiting(store, living)

    living, waiting = use_store(settings, read)
    facts: dict[str, JsonValue] = {
        "processes": [
            {
                "host": process.host,
                "pid": process.pid,
                "role": process.role,
                "version": process.version,
                "startedAt": format_instant(to_utc(process.started_at)),
                "policy": process.policy[:SHOWN_DIGITS],
                "tools": len(process.tools),
            }
            for process in living
        ],
        "waiting": [{"executionId": name, "waitsFor": text} for name, text in waiting.items()],
    }
    if not living:
        text = "no process serves or works on this store now" + ("" if not waiting else f"; {_first(waiting)}")
        return HealthCheck("processes", "warning" if waiting else "off", text, facts)
    text = ", ".join(f"{process.host}:{process.pid} ({process.role}, {process.version})" for process in living)
    problems = [_first(waiting)] if waiting else []
    outdated = [f"{process.host}:{process.pid}" for process in living if process.policy != living[0].policy]
    if outdated:
        problems.append(
            f"{', '.join(outdated)} started with another policy than {living[0].host}:{living[0].pid}, which started "
            "last: they end what they have begun; restart them with its planwarden.toml"
        )
    message = "; ".join([text, *problems])
    return HealthCheck("processes", "warning" if problems else "ok", message, facts)


async def _find_waiting(store: Store, living: tuple[ProcessFacts, ...]) -> dict[str, str]:
    """Return what executions wait for that run and have no owner, by their ids."""
    reasons: dict[str, str] = {}
    for execution_id in await store.orphans(MAX_WAITING):
        header = await store.header(execution_id)
        if header is None or header.owner is not None:
            continue
        try:
            reasons[execution_id] = describe_missing(await load_execution(store, header), living)
        except PlanwardenError as error:
            reasons[execution_id] = error.message
    return reasons


def _first(waiting: dict[str, str]) -> str:
    execution_id, text = next(iter(waiting.items()))
    more = "" if len(waiting) == 1 else f" ({len(waiting) - 1} more wait)"
    return f"execution {shorten_id(execution_id)}: {text[:1].lower()}{text[1:].rstrip('.')}{more}"
