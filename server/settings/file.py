"""Reads `planwarden.toml`: TOML whose tables `tables.py` has."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.server.settings.faults import read_tables
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.reminders import REMINDERS, build_schedules
from planwarden.server.settings.rules import build_rules
from planwarden.server.settings.tables import SettingsTables


class SettingsFile(msgspec.Struct, frozen=True):
    """What one file says."""

    tables: SettingsTables
    facts: dict[str, JsonValue]
    """What the digest of the policy covers of it; nothing for a file that is empty or missing."""

    def build_policy(self, same_person: frozenset[str]) -> OperatorPolicy:
        """Return the operator's policy; the names in `same_person` belong to one person.

        Raises:
            InvalidArguments: a key of reminders would have no effect.
        """
        approvals, tools = self.tables.approvals, self.tables.tools.by_name
        default_schedule, schedules = build_schedules(approvals, tools)
        return OperatorPolicy(
            trust_caller=approvals.trust_caller,
            critical=approvals.critical,
            quorum=approvals.quorum,
            approvers=tuple(approvals.approvers),
            same_person=same_person,
            facts=self.facts,
            rules=build_rules(self.tables.rules) if self.tables.rules else None,
            once={name: rule for name, settings in tools.items() if (rule := settings.once_rule) is not None},
            schedules=schedules,
            default_schedule=default_schedule,
        )


def read_file(path: Path) -> SettingsFile:
    """Return what the file says, or the defaults where there is none.

    Raises:
        InvalidArguments: it cannot be read, is not valid TOML, or has an unknown key or a wrong value.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
        tables = read_tables(document, SettingsTables, path.name)
    except FileNotFoundError:
        return SettingsFile(SettingsTables(), {})
    except tomllib.TOMLDecodeError as error:
        raise InvalidArguments(f"{str(path)!r} is not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArguments(f"cannot read {str(path)!r}: {error}") from error
    except RecursionError:
        raise InvalidArguments(f"{str(path)!r} is nested too deeply") from None
    except InvalidArguments as error:
        raise InvalidArguments(f"{str(path)!r}: {error.message}") from None
    return SettingsFile(tables, _list_facts(tables, document) if text else {})


def _list_facts(tables: SettingsTables, document: Mapping[str, Any]) -> dict[str, JsonValue]:
    # Reminders decide nothing, so changing them must not make open questions stale.
    facts: dict[str, JsonValue] = {
        "tools": {name: tool.model_dump(exclude={*REMINDERS}) for name, tool in tables.tools.by_name.items()}
    }
    if trusted := sorted(name for name, server in tables.servers.items() if server.trusted):
        facts["trusted"] = list[JsonValue](trusted)
    if tables.rules:
        # As they are written: whatever changes in a rule changes the policy.
        facts["rules"] = cast("JsonValue", document["rules"])
    return facts
