"""The offered rule: only after ten approvals, only what can be bounded, and only as text."""

import html
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.api.rule_offers import build_offer
from planwarden.server.settings.rules import build_rule_book
from tests.kit import Authority, Decision, decide, inbox, load_settings, plan, requirement, tool_step

pytestmark = requirement("rules:offer")
PERSON = Authority(assurance="human", channel="test", principal="ann")


def offer(*calls: Mapping[str, JsonValue]) -> dict[str, object] | None:
    found = build_offer("pay", [(1_800_000_000.0 + place * 3_600, call) for place, call in enumerate(calls)])
    return None if found is None else tomllib.loads(found.text)["rules"][0]


def test_what_differs_is_bounded_and_what_is_the_same_is_listed() -> None:
    calls: list[dict[str, JsonValue]] = [
        {
            "amount": 10 + place,
            "currency": "EUR",
            "to": {"iban": f"DE{place % 3}"},
            "url": f"https://shop.example.com/{place}",
            "file": f"/srv/data/{place}/a.txt",
            "tags": ["a"],
            "dry": False,
        }
        for place in range(10)
    ]
    assert offer(*calls) == {
        "tool": "pay",
        "when": {
            "amount": {"min": 10, "max": 19},
            "currency": {"in": ["EUR"]},
            "to/iban": {"in": ["DE0", "DE1", "DE2"]},
            "url": {"domain": "shop.example.com"},
            "file": {"under": "/srv/data"},
            "tags": {"in": [["a"]]},
            "dry": {"in": [False]},
            "/": {"only": ["amount", "currency", "dry", "file", "tags", "to", "url"]},
            "to": {"only": ["iban"]},
        },
        "then": "allow",
        "budget": [{"count": 10, "per": "day"}],
        "because": "10 calls like it were approved from 2027-01-15 to 2027-01-15",
    }


def test_the_offered_rule_lets_no_call_pass_with_an_argument_that_nobody_approved() -> None:
    calls: list[dict[str, JsonValue]] = [{"amount": place, "to": {"iban": "DE1"}} for place in range(10)]
    offered = build_offer("pay", [(1_800_000_000.0, call) for call in calls])
    assert offered is not None
    book = build_rule_book(tomllib.loads(offered.text)["rules"])
    same = book.judge("pay", calls[3])
    assert (
        same is not None and same.then == "allow" and 'the arguments has no names but "amount", "to"' in same.rule.words
    )
    assert book.judge("pay", {**calls[3], "bcc": "eve"}) is None
    assert book.judge("pay", {"amount": 3, "to": {"iban": "DE1", "via": "eve"}}) is None


UNBOUND: list[list[Any]] = [
    [f"free text {place}" for place in range(10)],
    [f"https://{place}.example/" for place in range(10)],
    [*["a"] * 9, 1],
    [*[["a"]] * 9, ["b"]],
    [None] * 10,
    ["a\u202eb"] * 10,
    ["\ud800"] * 10,
    [*[10**400] * 10],
]


@pytest.mark.parametrize("values", UNBOUND)
def test_nothing_is_offered_where_a_rule_could_not_bound_the_difference(values: list[JsonValue]) -> None:
    assert offer(*({"x": value} for value in values)) is None
    assert offer(*({"x": 1, **({"y": 2} if place else {})} for place in range(10))) is None


async def test_the_page_offers_the_rule_after_the_tenth_approval_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "planwarden.toml").write_text("")

    @planwarden.tool(name="pay")
    async def pay(amount: float, note: str = "none") -> str:
        """Pays."""
        return f"{amount} {note}"

    settings = load_settings(home=tmp_path, environment={})
    shown: list[str] = []
    async with inbox(tools=[pay], settings=settings) as found:
        browser = found.browser()
        await browser.log_in()
        for amount in range(1, 12):
            asked = await found.warden.execute_plan(plan(tool_step("a", "pay", {"amount": amount})), wait_seconds=60)
            name = asked.suspensions[0].suspension_id
            approved = Decision(approved=amount != 11)
            await decide(found.warden, (asked.thread_id, name), approved, PERSON)
            shown.append((await browser.open(f"/inbox/suspensions/{name}")).text)
    assert ['class="rule"' in page for page in shown] == [*[False] * 9, True, False]
    offered = html.unescape(shown[9].split('class="rule" tabindex="0">')[1].split("</pre>")[0])
    rule = tomllib.loads(offered)["rules"][0]
    only = {"only": ["amount", "note"]}
    assert rule["when"] == {"amount": {"min": 1, "max": 10}, "note": {"in": ["none"]}, "/": only}
    assert (tmp_path / "planwarden.toml").read_text() == ""
    (tmp_path / "planwarden.toml").write_text(offered)
    async with inbox(tools=[pay], settings=load_settings(home=tmp_path, environment={})) as found:
        passed = await found.warden.execute_plan(plan(tool_step("a", "pay", {"amount": 5})), wait_seconds=60)
    assert passed.status == "completed"
