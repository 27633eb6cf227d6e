"""Rules against a second implementation: slow, written from docs/rules.md, and without any library.

10,000 calls, by seeds that never change; whatever they show is the same on every machine.
"""

import json
import random
import re
from collections.abc import Mapping
from typing import Any, cast

import pytest

from planwarden.agent.approval.rules import RuleBook
from planwarden.server.settings.rules import build_rule_book
from tests.requirements import requirement

SEEDS, BOOKS, CALLS = 10, 25, 40
TOOLS = ("pay", "pay_out", "mail.send", "codex/shell")
GLOBS = ("pay", "pay*", "*", "?ay", "*/shell", "mail.*", "*_*", "nothing")
NAMES = ("amount", "to", "note", "list")
PLACES = ("amount", "note", "to/iban", "/to/amount", "list/0", "list", "to", "note/x")
WORDS = (
    "",
    "a",
    "DE",
    "DE12",
    "de12",
    "x.y",
    "80",
    "é",
    "😀😀",
    "a\nb",
    "\x00",
    "https://example.com/a",
    "bob@a.example.com",
)
HOSTS = ("http://example.com.", "https://example.com@evil.org", "http://evil.org/example.com", "ftp://EXAMPLE.com:21")
VALUES: tuple[Any, ...] = (*WORDS, *HOSTS, 0, 1, 1.0, 80, -5, 99.5, 10**30, True, False, None, [], [1], ["a", "b"], {})


def draw_condition(dice: random.Random) -> dict[str, Any]:
    """One or two short forms, or a piece of JSON Schema."""
    forms: dict[str, Any] = {
        "min": dice.choice((0, 1, 50, -5.5)),
        "max": dice.choice((0, 80, 100.5, 10**29)),
        "in": dice.sample(VALUES, 3),
        "prefix": dice.choice(("D", "x.", "a\n", ["DE", "a"], "\x00", "\u00e9")),
        "matches": dice.choice(("a|DE", "[a-z]+", "DE[0-9]*", ".", "")) or ".*",
        "length": dice.choice(({"max": 2}, {"min": 1}, {"min": 1, "max": 3})),
        "domain": dice.choice(("example.com", ["evil.org", "a.example.com"])),
        "type": dice.choice(("string", "number", "array")),
    }
    kinds = dice.sample(sorted(forms), dice.choice((1, 1, 2)))
    if "min" in kinds and "max" in kinds and forms["min"] > forms["max"]:
        kinds.remove("min")
    return {kind: forms[kind] for kind in kinds}


def draw_rule(dice: random.Random) -> dict[str, Any]:
    rule: dict[str, Any] = {"tool": dice.choice(GLOBS)}
    # A place with and without a slash at the start is the same place.
    rule["when"] = {place: draw_condition(dice) for place in dice.sample(PLACES, dice.choice((0, 1, 1, 2)))}
    if dice.random() < 0.2:
        return rule | {"risk": dice.choice(("read", "confirm", "dangerous", "critical"))}
    rule["then"] = dice.choice(("allow", "ask", "deny"))
    if rule["then"] == "allow" and dice.random() < 0.5:
        rule["budget"] = [dice.choice(({"count": 3, "per": "hour"}, {"sum": "amount", "limit": 9.5, "per": "day"}))]
    return rule


def draw_arguments(dice: random.Random) -> dict[str, Any]:
    found = {name: dice.choice(VALUES) for name in NAMES if dice.random() < 0.8}
    if dice.random() < 0.6:
        found["to"] = {name: dice.choice(VALUES) for name in ("iban", "amount") if dice.random() < 0.8}
    return found


def reference(rules: list[dict[str, Any]], tool: str, arguments: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What docs/rules.md says: number, then, risk, shares; None when no rule matches."""
    for number, rule in enumerate(rules, 1):
        if not fits_glob(rule["tool"], tool):
            continue
        said = [holds(condition, find(arguments, place)) for place, condition in rule["when"].items()]
        if False in said:
            continue
        if None in said:
            return number, "ask", None, ()
        shares: list[float] = []
        for budget in rule.get("budget", ()):
            amount = 1 if "count" in budget else find(arguments, budget["sum"])
            if type(amount) not in (int, float) or amount < 0:
                return number, "ask", None, ()
            shares.append(float(amount))
        return number, rule.get("then"), rule.get("risk"), tuple(shares)
    return None


def fits_glob(glob: str, name: str) -> bool:
    if not glob:
        return not name
    if glob[0] == "*":
        return any(fits_glob(glob[1:], name[start:]) for start in range(len(name) + 1))
    return bool(name) and glob[0] in ("?", name[0]) and fits_glob(glob[1:], name[1:])


MISSING = object()


def find(arguments: Any, place: str) -> Any:
    found: Any = arguments
    for part in place.removeprefix("/").split("/"):
        inside: Any = MISSING
        if isinstance(found, dict):
            inside = cast("dict[str, Any]", found).get(part, MISSING)
        elif isinstance(found, list) and part.isdigit():
            inside = next(iter(cast("list[Any]", found)[int(part) :]), MISSING)
        if inside is MISSING:
            return MISSING
        found = inside
    return found


def holds(condition: Mapping[str, Any], value: Any) -> bool | None:
    """True, False, or None when nobody knows."""
    said = [holds_one(kind, wanted, value) for kind, wanted in condition.items() if kind != "domain"]
    if value is MISSING or False in said:
        return False
    return holds_one("domain", condition["domain"], value) if "domain" in condition else True


def holds_one(kind: str, wanted: Any, value: Any) -> bool | None:
    is_number, is_text = type(value) in (int, float), isinstance(value, str)
    texts = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    match kind:
        case "min":
            return is_number and value >= wanted
        case "max":
            return is_number and value <= wanted
        case "in":
            return any(is_same(one, value) for one in texts)
        case "prefix":
            return is_text and any(value[: len(text)] == text for text in texts)
        case "matches":
            return is_text and re.fullmatch(cast("str", wanted), value) is not None
        case "length":
            ends = cast("dict[str, int]", wanted)
            has_length = is_text or isinstance(value, list)
            return has_length and ends.get("min", 0) <= len(cast("str", value)) <= ends.get("max", 10**9)
        case "type":
            return {"string": is_text, "number": is_number, "array": isinstance(value, list)}[cast("str", wanted)]
        case _:
            return is_text and is_on_domain(texts, value)


def is_same(one: Any, other: Any) -> bool:
    """JSON knows one kind of number, and true is none."""
    if type(one) in (int, float) and type(other) in (int, float):
        return one == other
    return type(one) is type(other) and json.dumps(one) == json.dumps(other)


def is_on_domain(domains: list[str], value: str) -> bool | None:
    host = None
    if "://" in value and "@" not in value and not any(char.isspace() or ord(char) < 32 for char in value):
        host = re.split(r"[/?#]", value.split("://")[1])[0].rsplit(":", 1)[0]
    elif value.count("@") == 1 and "/" not in value:
        host = value.split("@")[1]
    if not host:
        return None
    labels = host.lower().rstrip(".").split(".")
    return any(labels[-len(domain.split(".")) :] == domain.split(".") for domain in domains)


@requirement("rules:reference")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_second_implementation_decides_the_same_about_generated_calls(seed: int) -> None:
    dice = random.Random(seed)
    seen = set[object]()
    for _ in range(BOOKS):
        rules = [draw_rule(dice) for _ in range(dice.randint(1, 6))]
        for rule in rules:
            if {"to/amount", "/to/amount"} <= rule["when"].keys():
                del rule["when"]["/to/amount"]
        book: RuleBook = build_rule_book(rules)[0]
        for _ in range(CALLS):
            tool, arguments = dice.choice(TOOLS), draw_arguments(dice)
            judged = book.judge(tool, arguments, {})
            found = None
            if judged is not None:
                shares = tuple(share.amount for share in judged.shares)
                found = (judged.rule.number, judged.then, judged.risk, shares)
            wanted = reference(rules, tool, arguments)
            assert found == wanted, (rules, tool, arguments)
            seen.add(None if wanted is None else wanted[1])
    # The generator reaches what a rule can do; without `then` it sets a risk.
    assert seen == {None, "allow", "ask", "deny"}
