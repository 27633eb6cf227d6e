"""Rules on arguments: which calls they match, and that whatever cannot be evaluated asks."""

import tomllib
from collections.abc import Mapping

import pytest
from pydantic import JsonValue

from planwarden.agent.approval.rules import Judgement, RuleBook
from planwarden.agent.approval.whereabouts import find_host
from planwarden.agent.ports.policy import PathsNeeded
from planwarden.server.settings.rules import build_rule_book
from tests.requirements import requirement


def book(text: str) -> RuleBook:
    return build_rule_book(tomllib.loads(text)["rules"])[0]


def when(condition: str, then: str = 'then = "allow"') -> RuleBook:
    return book(f'[[rules]]\ntool = "pay"\nwhen = {{ x = {{ {condition} }} }}\n{then}')


def verdict(judged: Judgement | None) -> str:
    if judged is None:
        return "no"
    return "yes" if judged.is_certain else "unknown"


def judge(rules: RuleBook, value: JsonValue) -> str:
    return verdict(rules.judge("pay", {"x": value}))


# The second implementation of test_rules_reference.py judges the forms that are left out here.
FORMS: list[tuple[str, list[JsonValue], list[JsonValue]]] = [
    ("length = { min = 1, max = 3 }", ["abc", [1, 2, 3], "😀😀😀"], ["", "abcd", [], [1, 2, 3, 4], 5, {}, None]),
    ('domain = "example.com"', ["https://example.com", "x://a.EXAMPLE.com:8/p?@#", "bob@example.com"], [5, None]),
    ('domain = "example.com"', ["wss://example.com./x"], ["https://notexample.com", "http://example.com.evil.org"]),
    ('type = "string", maxLength = 2', ["ab"], ["abc", 1]),
    ("items = { minimum = 2 }, length = { max = 2 }", [[2, 3]], [[1], [2, 2, 2]]),
]


@requirement("rules:match")
@pytest.mark.parametrize(("condition", "fits", "fits_not"), FORMS)
def test_a_short_form_matches_what_it_says_and_nothing_of_another_type(
    condition: str, fits: list[JsonValue], fits_not: list[JsonValue]
) -> None:
    rules = when(condition)
    assert {repr(value): judge(rules, value) for value in fits} == {repr(value): "yes" for value in fits}
    assert {repr(value): judge(rules, value) for value in fits_not} == {repr(value): "no" for value in fits_not}


@requirement("rules:match")
def test_the_first_rule_that_matches_decides_and_a_missing_value_matches_nothing() -> None:
    rules = book("""
[[rules]]
tool = "pay*"
when = { "to/iban" = { prefix = "DE" }, "/items/0/n" = { max = 5 } }
then = "allow"
because = "small"
[[rules]]
tool = "*/pay"
then = "deny"
[[rules]]
tool = "pa?"
risk = "critical"
""")
    call: dict[str, JsonValue] = {"to": {"iban": "DE1"}, "items": [{"n": 4}]}
    first = rules.judge("payments", call)
    assert first is not None and (first.then, first.because, first.rule.number) == ("allow", "small", 1)
    assert first.rule.matched == ('to/iban = "DE1"', "items/0/n = 4")
    assert first.rule.words == ('allow pay* when to/iban begins with "DE" and items/0/n is at most 5 (small)')
    lacking: list[dict[str, JsonValue]] = [{}, {"to": "DE"}, {"to": {}}, {"to": {"iban": "DE"}, "items": {}}]
    for arguments in lacking:
        third = rules.judge("pay", arguments)
        assert third is not None and (third.then, third.risk, third.rule.number) == (None, "critical", 3)
    assert rules.judge("payments", {}) is None
    guarded = rules.judge("codex/pay", {})
    assert guarded is not None and guarded.then == "deny"


@requirement("rules:doubt")
@pytest.mark.parametrize("then", ['then = "allow"', 'then = "deny"', 'risk = "read"'])
@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ('prefix = "a"', "\ud800"),
        ("max = 5", 10**400),
        ("items = { uniqueItems = true }", [[{"a": [n]} for n in range(3_000)]] * 10),
        ('domain = "example.com"', "https://example.com@evil.org/"),
        ('domain = "example.com"', "https://example.com\\@evil.org/"),
        ('domain = "example.com"', "example.com"),
        ('domain = "127.0.0.1"', "http://2130706433/"),
        ('domain = "127.0.0.1"', "http://127.1/"),
        ('domain = "example.com"', "https://ex%61mple.com/"),
        ('domain = "example.com"', "https://exämple.com/"),
        ('domain = "example.com"', "a@example.com, b@evil.org"),
        ('domain = "example.com"', "https://example.com/\n"),
        ('under = "/srv"', "relative/path"),
        ('under = "/srv"', "/srv/\0"),
        ('under = "/srv"', "~/x"),
    ],
)
def test_what_cannot_be_evaluated_asks_whatever_the_rule_says(condition: str, value: JsonValue, then: str) -> None:
    found = when(condition, then).judge("pay", {"x": value}, {"/srv": "/srv"})
    assert found is not None and (found.then, found.risk, found.is_certain, found.shares) == ("ask", None, False, ())


@requirement("rules:doubt")
def test_a_condition_that_certainly_fails_ends_the_doubt_about_the_others() -> None:
    rules = book('[[rules]]\ntool="*"\nthen="allow"\nwhen={ x = { domain = "example.com" }, y = { max = 1 } }')
    assert verdict(rules.judge("pay", {"x": "no address", "y": 2})) == "no"
    assert verdict(rules.judge("pay", {"x": "no address", "y": 1})) == "unknown"


@requirement("rules:bounded")
def test_a_call_takes_bounded_work_however_many_rules_look_at_its_largest_arguments() -> None:
    rules = book(
        "\n".join(f'[[rules]]\ntool="*"\nthen="deny"\nwhen={{ x = {{ matches = "(a|b){n},z" }} }}' for n in range(400))
    )
    found = rules.judge("pay", {"x": "ab" * 100_000})
    assert found is not None and not found.is_certain and 1 < found.rule.number < 400
    assert len(str(found.rule.matched)) < 500


@requirement("rules:share")
@pytest.mark.parametrize("amount", [-1, "80", True, None, 10**400, [1]])
def test_an_amount_that_cannot_be_counted_asks(amount: JsonValue) -> None:
    rules = book('[[rules]]\ntool="pay"\nthen="allow"\nbudget=[{sum="/x", limit=5, per="day"}]')
    for arguments in ({"x": amount}, {}):
        found = rules.judge("pay", arguments)
        assert found is not None and (found.then, found.shares, found.is_certain) == ("ask", (), False)


@requirement("rules:share")
def test_a_call_takes_its_amount_of_each_budget_whose_name_stays_while_the_rule_says_the_same() -> None:
    text = """
[[rules]]
tool = "pay"
then = "allow"
when = { x = { min = 0 } }
budget = [{ sum = "x", limit = 5, per = "day" }, { count = 2, per = "hour" }]
"""
    first = book(text).judge("pay", {"x": 2})
    later = book('[[rules]]\ntool="other"\nthen="deny"\n' + text).judge("pay", {"x": 2})
    other = book(text.replace("limit = 5", "limit = 6")).judge("pay", {"x": 2})
    assert first is not None and later is not None and other is not None
    assert [(share.amount, share.limit, share.window_s) for share in first.shares] == [(2, 5, 86_400), (1, 2, 3_600)]
    assert first.shares == later.shares and len({share.budget for share in (*first.shares, *other.shares)}) == 3


UNDER: Mapping[str, str | None] = {
    "/srv": "/srv",
    "/srv/a": "/srv/a",
    "/srv/link/a": "/etc/a",
    "/data/a": "/srv/a",
    "/srv/../etc/a": "/etc/a",
    "/srv/x/../a": "/srv/a",
    "/srvs/a": "/srvs/a",
    "/SRV/A": "/SRV/A",
    "/gone": None,
}


@requirement("rules:under")
@pytest.mark.parametrize(
    ("path", "loosening", "other"),
    [
        ("/srv/a", "yes", "yes"),
        ("/srv", "no", "yes"),
        ("/srv/link/a", "no", "yes"),
        ("/data/a", "no", "yes"),
        ("/srv/../etc/a", "no", "no"),
        ("/srv/x/../a", "yes", "yes"),
        ("/srvs/a", "no", "no"),
        ("/SRV/A", "no", "yes"),
        ("/gone", "unknown", "unknown"),
    ],
)
def test_links_and_letters_never_help_a_path_past_a_rule(path: str, loosening: str, other: str) -> None:
    for then in ('then = "allow"', 'risk = "read"'):
        assert verdict(when('under = "/srv/"', then).judge("pay", {"x": path}, UNDER)) == loosening
    for then in ('then = "deny"', 'then = "ask"', 'risk = "critical"'):
        assert verdict(when('under = "/srv/"', then).judge("pay", {"x": path}, UNDER)) == other
    # It may lower the risk of one tool and raise that of another.
    either = verdict(when('under = "/srv/"', 'risk = "confirm"').judge("pay", {"x": path}, UNDER))
    assert either == (loosening if loosening == other else "unknown")


@requirement("rules:under")
def test_only_a_path_that_matters_has_to_be_looked_up() -> None:
    rules = book('[[rules]]\ntool="*"\nthen="allow"\nwhen={ x = { under = "/srv" }, y = { max = 1 } }')
    assert rules.judge("pay", {"x": "/srv/a", "y": 2}, {}) is None
    with pytest.raises(PathsNeeded) as needed:
        rules.judge("pay", {"x": "/srv/a", "y": 1}, {})
    assert needed.value.wanted == {"/srv", "/srv/a"}
    assert verdict(rules.judge("pay", {"x": "/srv/a", "y": 1})) == "unknown"


@requirement("rules:match")
@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("http://[::1]:80/", "[::1]"),
        ("http://[0:0::1]/", "[::1]"),
        ("http://[::1", None),
        ("http://a..b/", None),
        ("http://-a/", None),
        ("http://0x7f.0.0.1/", None),
        ("http://127.0.0.1/", "127.0.0.1"),
        ("mailto:a@b.c", None),
        ("file:///etc/passwd", None),
        ("//example.com/x", None),
        ("https://A.b\\.c/", None),
        ("https://a.b/" + "x" * 5_000, None),
        ("Bob <bob@b.c>", None),
        ("bob%evil.org@b.c", None),
    ],
)
def test_a_host_is_read_only_where_everybody_reads_the_same(text: str, host: str | None) -> None:
    assert find_host(text) == host
