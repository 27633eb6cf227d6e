"""The check of `doctor` on rules: how many there are, and what the operator may not have meant by them."""

from pydantic import JsonValue

from planwarden.server.cli.health import HealthCheck
from planwarden.server.settings.catalogue import build_downstream, build_registry
from planwarden.server.settings.configuration import FILE, Settings

MAX_NAMED = 5


def check_rules(settings: Settings) -> HealthCheck:
    """A rule that is not usable is broken settings; here are those that are usable and may say something else."""
    book = settings.policy.rules
    if book is None:
        return HealthCheck(name="rules", status="off", message=f"none; [[rules]] in {FILE} adds them")
    # Most homes have no rules.
    from planwarden.server.api.rules import list_rule_notes

    registry = build_registry(settings)
    if settings.servers.configs:
        build_downstream(settings, registry)
    tools = {definition.name: definition for definition in registry.definitions()}
    servers = tuple(f"{config.slug}_" for config in settings.servers.configs)
    notes = list(list_rule_notes(book, tools, servers))
    facts: dict[str, JsonValue] = {"rules": len(book.rules), "notes": list[JsonValue](notes)}
    text = f"{len(book.rules)} in {FILE}"
    if not notes:
        return HealthCheck(name="rules", status="ok", message=text, facts=facts)
    more = f"; and {len(notes) - MAX_NAMED} more" if len(notes) > MAX_NAMED else ""
    text = f"{text}; {'; '.join(notes[:MAX_NAMED])}{more}"
    return HealthCheck(name="rules", status="warning", message=text, facts=facts)
