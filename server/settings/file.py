"""Reads `planwarden.toml`: TOML whose tables msgspec checks. A home without the file imports nothing of this."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict, replace

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.paths import expand_home
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core import events as ev
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.settings.given import FileSettings
from planwarden.server.settings.reminders import REMINDERS, build_schedules
from planwarden.server.settings.tables import RARE, ApprovalsTable, SettingsTables, ToolSettings

# Most homes have no channels, hooks and rules: pydantic, which checks those, takes as long as all the rest of `list`.
if TYPE_CHECKING:
    from planwarden.agent.approval.rules import RuleBook
    from planwarden.server.notifications.channels import NotificationChannel
    from planwarden.server.notifications.settings import NotifySettings
    from planwarden.server.webhooks.settings import Hook

ONCE_DAYS = 90.0
MAX_FAULTS = 10
"""In a message."""

Table = TypeVar("Table", bound=Struct)


def read_file(path: Path, text: str, environment: Mapping[str, str]) -> FileSettings:
    """Returns what the file says; `text` is its content. Secrets of channels and hooks come from the environment.

    Raises:
        InvalidArguments: it is not valid TOML, or has an unknown key or a wrong value.
    """
    parsed = _read_tables(path, text)
    listed, by_name = _read_tools(parsed.tools, path)
    rules, of_rules = _read_rules(parsed.rules, path)
    approvals, execution, inbox = parsed.approvals, parsed.execution, parsed.inbox
    given = {
        "max_iterations": execution.maxIterations,
        "taef_max_retries": execution.taefMaxRetries,
        "tool_mode": execution.toolMode,
        "wait_seconds": execution.waitSeconds,
        "model_patience_s": execution.modelPatienceS,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    # Reminders decide nothing, so changing them must not make open questions stale.
    facts: dict[str, JsonValue] = {
        "tools": {
            name: {key: value for key, value in asdict(found).items() if key not in REMINDERS}
            for name, found in by_name.items()
        }
    }
    trusted: list[JsonValue] = [*sorted(name for name, found in parsed.servers.items() if found.trusted)]
    if trusted:
        facts["trusted"] = trusted
    if of_rules:
        facts["rules"] = of_rules
    return FileSettings(
        settings={
            "options": ev.Options(**changes),
            "max_steps": execution.maxSteps,
            "tools": by_name,
            "python_files": listed,
            "plan_folders": tuple((written, expand_home(written).absolute()) for written in parsed.plans.folders),
            "plans_as_tools": parsed.plans.as_tools,
            "retention_days": parsed.retention.days,
            "given_http": parsed.http,
            "trust_caller_over_network": approvals.trust_caller_over_network,
            "opens_inbox": approvals.open_inbox == "auto",
            "inbox_port": inbox.port,
            "passphrase_file": None if inbox.passphrase_file is None else path.parent / inbox.passphrase_file,
            "channels": _read_channels(parsed.notify, environment),
            "hooks": _read_hooks(parsed.hooks, environment, path),
        },
        policy={**_read_policy(approvals, by_name, path), "facts": facts if text else {}, "rules": rules},
        telemetry={
            "endpoint": parsed.otel.endpoint,
            "protocol": parsed.otel.protocol,
            "record_arguments": parsed.otel.record_arguments,
            "log_format": parsed.logging.format,
            "log_level": parsed.logging.level,
        },
        servers=parsed.servers,
        model=parsed.model,
        store_url=parsed.store.url,
        control_url=parsed.store.control_url,
    )


def _read_tables(path: Path, text: str) -> SettingsTables:
    try:
        document = tomllib.loads(text)
        read = _check(document, SettingsTables, path, path.name)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArguments(f"{str(path)!r} is not valid TOML: {error}") from None
    except RecursionError:
        raise InvalidArguments(f"{str(path)!r} is nested too deeply") from None
    rare = {name: document[name] for name in RARE if name in document}
    if not rare:
        return read
    from planwarden.server.settings.rare_tables import check_rare_tables

    return replace(read, **check_rare_tables(rare, path))


def _check(table: dict[str, Any], kind: type[Table], path: Path, where: str) -> Table:
    try:
        return convert(table, kind)
    except ValidationError:
        from planwarden.server.settings.faults import list_table_faults

        faults = list_table_faults(table, kind, where)[:MAX_FAULTS]
        raise InvalidArguments(f"{str(path)!r}: {'; '.join(faults)}") from None


def _read_channels(tables: "list[NotifySettings]", environment: Mapping[str, str]) -> "tuple[NotificationChannel, ...]":
    if not tables:
        return ()
    from planwarden.server.notifications.settings import build_channels

    return build_channels(tables, environment)


def _read_hooks(section: Mapping[str, Any], environment: Mapping[str, str], path: Path) -> "tuple[Hook, ...]":
    if not section:
        return ()
    from pydantic import ValidationError

    from planwarden.server.settings.options import to_invalid_arguments
    from planwarden.server.webhooks.settings import HookTables, build_hooks

    try:
        return build_hooks(section, environment)
    except ValidationError as error:
        raise to_invalid_arguments(error, path.name, HookTables) from None


def _read_rules(section: list[Any], path: Path) -> "tuple[RuleBook | None, list[JsonValue]]":
    if not section:
        return None, []
    from planwarden.server.settings.rules import build_rule_book

    try:
        return build_rule_book(section)
    except InvalidArguments as error:
        raise InvalidArguments(f"{str(path)!r}: {error.message}") from None


def _read_policy(approvals: ApprovalsTable, tools: Mapping[str, ToolSettings], path: Path) -> dict[str, Any]:
    if approvals.approvers and len(set(approvals.approvers)) < approvals.quorum:
        raise InvalidArguments(
            f"{path.name}: approvals.quorum is {approvals.quorum}, but approvers names {len(set(approvals.approvers))}"
        )
    default, by_name = build_schedules(approvals, tools)
    return {
        "trust_caller": approvals.trust_caller,
        "critical": approvals.critical,
        "quorum": approvals.quorum,
        "approvers": tuple(approvals.approvers),
        "once": {
            name: OnceRule(tuple(found.once), (found.once_days or ONCE_DAYS) * 86_400.0)
            for name, found in tools.items()
            if found.once is not None
        },
        "schedules": by_name,
        "default_schedule": default,
    }


def _read_tools(section: Mapping[str, Any], path: Path) -> tuple[tuple[Path, ...], dict[str, ToolSettings]]:
    """Reads the `[tools]` table: `python` lists files, every other key is a tool's name."""
    listed = section.get("python", [])
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):  # pyright: ignore[reportUnknownVariableType]
        raise InvalidArguments(f"{str(path)!r}: tools.python must be a list of file names")
    files = tuple(path.parent / str(entry) for entry in listed)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    by_name: dict[str, ToolSettings] = {}
    for name, entry in section.items():
        if name == "python":
            continue
        if not isinstance(entry, dict):
            raise InvalidArguments(
                f"{str(path)!r}: tools.{name} is no key{did_you_mean(name, ['python'])}; settings of a tool "
                f'with this name stand in a table of their own, [tools."{name}"]'
            )
        by_name[name] = _check(cast("dict[str, Any]", entry), ToolSettings, path, f'tools."{name}"')
    return files, by_name
