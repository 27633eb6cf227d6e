"""What a person reads about a wrong `planwarden.toml`, what is part of the policy, and tools of installed packages."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.tool import Risk, ToolDefinition
from planwarden.server.settings.catalogue import build_registry
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.faults import MAX_PATH_CHARS
from tests.requirements import requirement


def load(folder: Path, text: str) -> Settings:
    (folder / "planwarden.toml").write_text(text, encoding="utf-8")
    return load_settings(home=folder, environment={})


TABLE_FAULTS = [
    *(
        (f"[approvals]\nquorum = {wrong}", "approvals.quorum: must be a whole number (at least 1, at most 20)")
        for wrong in ("21", "true", '"5"', "5.0", "1" + "0" * 400)
    ),
    ('[http]\npublic_url = "https://x:99999"', "http.public_url: Input should be a valid URL, invalid port number"),
    ("[approvals]\ntrust_caller = 1", "approvals.trust_caller: must be true or false"),
    (
        '[approvals]\napprovers = ["a", ""]',
        "approvals.approvers[1]: must be text (1 or more characters, at most 200 characters)",
    ),
    ("[approvals]\nremind_after_s = [1, 0]", "remind_after_s[1]: must be a number (more than 0, at most 2592000)"),
    ("[approvals]\nescalate_after_s = nan", "escalate_after_s: must be a number (at least 0, at most 2592000)"),
    ("[execution]\nwaitSeconds = 1" + "0" * 400, "waitSeconds: must be a number (at least 0, at most 300)"),
    ('[plans]\nfolders = ["a\\u0000b"]', "plans.folders[0]: a path cannot contain a NUL character"),
    ('[tools]\npython = ["a\\u0000b"]', "tools.python[0]: a path cannot contain a NUL character"),
    ('[inbox]\npassphrase_file = "a\\u0000b"', "inbox.passphrase_file: a path cannot contain a NUL character"),
    ('[plans]\nfolders = "plans"', "plans.folders: must be a list (at most 20 entries)"),
    ("[retention]\ndays = 2026-01-01", "retention.days: must be a whole number (at least 1)"),
    ("approvals = 3", "approvals: must be a table"),
    ("[tools]\npyton = 3", "tools.pyton: must be a table (did you mean 'python'?)"),
    ('[otel]\nendpoint = "http://["', "otel: endpoint must be http://host:4318 or https://host"),
    ('[http]\nhost = "x"', "unknown key http.host"),
    ("notify = 3", "notify: must be a list"),
    (
        '[http]\nmodel = "x"',
        "unknown key http.model; if it is for the whole file, write it above the first line with a [",
    ),
    (
        '[[notify]]\nkind = "webhook"\nurl = "https://["\nsecret_env = "X"',
        "this is not an address; write https://host/path",
    ),
    ("[tools.a]\nremind_after_s = [5, 60]\nanswer_within_s = 60", "nobody is reminded after 60 s"),
    *(
        (f"[tools.a]\n{key} = {number}", key)
        for key in ("answer_within_s", "timeout_s")
        for number in ("inf", "nan", "0")
    ),
    ("[approvals]\nqorum = 1", "unknown key approvals.qorum (did you mean 'quorum'?)"),
    ('[approvals]\nquorum = 3\napprovers = ["bob", "bob", "carol"]', "quorum is 3, but approvers names 2"),
    *((f"[hooks.{table}", "hooks") for table in ('"a/b"]\nplan = "p"\nsecret_env = "X"', 'a]\nplan = "p"')),
]
"""Each wrong value, and what is said of it: the key and what would be right."""
PROMISE = '[[promises]]\nname = "p"\nrequires = { tool = "test" }\nwhen = { tool = '
EITHER = (
    "when.tool: must be text (1 or more characters, at most 200 characters) or a list (1 or more entries, at most 20 "
    "entries)"
)
PROMISE_FAULTS = [
    *((PROMISE + f"{wrong} }}", EITHER) for wrong in ("5", '""', "[]", "{}")),
    (PROMISE + '["a", 5] }', "when.tool[1]: must be text (1 or more characters, at most 200 characters)"),
    (PROMISE + '["a", "b c"] }', "when.tool[1]: String should match pattern"),
    (PROMISE + '"b c" }', "when.tool: String should match pattern"),
]
"""Each wrong value where text or a list is right, and the one fault that is told."""
RULE = '[[rules]]\ntool = "pay"\n'
RULE_FAULTS = [
    ("[rules]", "rules: must be a list (at most 500 entries); begin each entry with the line [[rules]]"),
    ("rules = [5]", "rule 1: must be a table"),
    ('[[rules]]\nthen = "deny"', "rule 1.tool is missing"),
    ('[[rules]]\ntool = 5\nthen = "deny"', "rule 1.tool: must be text (1 or more characters, at most 200 characters)"),
    ('[[rules]]\ntool = "pay me"\nthen = "deny"', "is neither a name nor a glob"),
    (RULE, "needs either then"),
    (RULE + 'then = "deny"\nrisk = "read"', "needs either then"),
    (RULE + 'than = "deny"', "unknown key rule 1.than (did you mean 'then'?)"),
    (RULE + 'then = "deny"\nbecause = "a\\nb"', "because must be one line"),
    (RULE + 'then = "deny"\nwhen = { x = 5 }', "when.'x' must be a table such as { max = 100 }, not 5"),
    (RULE + 'then = "deny"\nwhen = { x = {} }', "when.'x' is empty"),
    (RULE + 'then = "deny"\nwhen = { x = { mim = 5 } }', "unknown key 'mim'; the short forms are min, max, "),
    (RULE + 'then = "deny"\nwhen = { x = { maxx = 5 } }', "unknown key 'maxx' (did you mean 'max'?)"),
    (RULE + 'then = "deny"\nwhen = { to = { iban = { prefix = "DE" } } }', 'with slashes, such as "to/iban"'),
    (RULE + 'then = "deny"\nwhen = { x = { items = { max = 5 } } }', "short forms work only at the top"),
    (RULE + 'then = "deny"\nwhen = { x = { max = true } }', "has max = True, which is not a number"),
    (RULE + 'then = "deny"\nwhen = { x = { min = 5, max = 4 } }', "min 5 above max 4"),
    (RULE + 'then = "deny"\nwhen = { x = { in = "EUR" } }', "which is not a list of values"),
    (RULE + 'then = "deny"\nwhen = { x = { in = [1979-05-27] } }', "write dates as text"),
    (RULE + 'then = "deny"\nwhen = { x = { prefix = "" } }', "which is not a text of 1 to"),
    *(
        (RULE + f'then = "deny"\nwhen = {{ x = {{ matches = "{pattern}" }} }}', "has a 'matches' that is not usable")
        for pattern in ("(", "a)|(?:b", "(?=a)")
    ),
    (RULE + 'then = "deny"\nwhen = { x = { length = { min = 5, max = 4 } } }', "nothing matches"),
    (RULE + 'then = "deny"\nwhen = { x = { length = { least = 5 } } }', "write { min = 1, max = 200 }, or one of"),
    (RULE + 'then = "deny"\nwhen = { x = { prefix = [] } }', "has 0 texts in 'prefix'; use 1 to 1000"),
    (RULE + 'then = "deny"\nwhen = { x = { matches = 5 } }', "which is not a regular expression as text"),
    (RULE + 'then = "deny"\nwhen = { x = { only = "a" } }', "which is not a list of names"),
    (RULE + f'then = "deny"\nwhen = {{ x = {{ only = {["a"] * 1_001} }} }}', "names in 'only', the limit is 1000"),
    (RULE + 'then = "deny"\nwhen = { x = { anyOf = [{ max = 5 }] } }', "short forms work only at the top"),
    (RULE + 'then = "deny"\nwhen = { x = { properties = { a = 5 } } }', "must be a JSON Schema instead of 5"),
    (RULE + f'then = "deny"\nwhen = {{ {"x" * 501} = {{ max = 5 }} }}', "use at most 500 characters and no control"),
    (RULE + 'then = "allow"\nbudget = [{ sum = "a~b", limit = 5, per = "day" }]', "sum "),
    (RULE + 'then = "deny"\nwhen = { x = { domain = "*.example.com" } }', "not a host name"),
    (RULE + 'then = "deny"\nwhen = { x = { under = "data" } }', "which is not an absolute folder"),
    (RULE + 'then = "deny"\nwhen = { x = { type = "strin" } }', "not usable as JSON Schema"),
    (RULE + 'then = "deny"\nwhen = { "a~b" = { max = 5 } }', "is not a JSON Pointer"),
    (RULE + 'then = "deny"\nwhen = { a = { max = 5 }, "/a" = { min = 1 } }', "the same place twice"),
    (RULE + 'then = "deny"\nbudget = [{ count = 5, per = "day" }]', 'goes with then = "allow" only'),
    (RULE + 'then = "allow"\nbudget = [{ count = 5 }]', "rule 1.budget[0].per is missing"),
    (RULE + 'then = "allow"\nbudget = [{ count = 5, sum = "x", per = "day" }]', "needs either sum and limit, or count"),
    (
        RULE + 'then = "allow"\nbudget = [{ count = 5, per = "year" }]',
        "rule 1.budget[0].per: must be 'hour', 'day', 'week' or 'month'",
    ),
    ((RULE + 'then = "deny"\n') * 501, "rules: must be a list (at most 500 entries)"),
    (RULE + 'then = "deny"\nwhen = { x = { in = [' + "1, " * 1_001 + "] } }", "the limit is 1000"),
    (RULE + 'then = "deny"\nwhen = { x = ' + "{ not = " * 30 + "{ max = 5 }" + " }" * 31, "nested deeper"),
]
"""Each rule that cannot be used, and what is said of it."""


@requirement("rules:policy")
def test_a_changed_rule_is_a_changed_policy(tmp_path: Path) -> None:
    rule = RULE + 'when = { x = { max = 5 } }\nthen = "allow"\n'
    other = RULE + 'then = "deny"\n'
    texts = ["", rule, rule.replace("5", "6"), rule + 'because = "small"', rule + other, other + rule]
    assert len({load(tmp_path, text).policy.policy_digest for text in texts}) == len(texts)
    assert load(tmp_path, rule).policy.policy_digest == load(tmp_path, rule + "\n# a comment").policy.policy_digest


@requirement("rules:policy")
@pytest.mark.parametrize(
    ("says", "needs"),
    [
        ('then = "allow"', {"read": None, "confirm": None, "dangerous": None, "critical": "signed"}),
        ('then = "ask"', {"read": "human", "confirm": "human", "dangerous": "human", "critical": "signed"}),
        ('risk = "read"', {"read": None, "confirm": None, "dangerous": None, "critical": "signed"}),
        ('risk = "confirm"', {"read": "client", "confirm": "client", "dangerous": "client", "critical": "signed"}),
        ('risk = "critical"', {"read": "signed", "confirm": "signed", "dangerous": "signed", "critical": "signed"}),
    ],
)
def test_a_rule_takes_nothing_away_from_a_critical_tool(
    tmp_path: Path, says: str, needs: dict[Risk, str | None]
) -> None:
    policy = load(tmp_path, RULE + says).policy
    found = {
        risk: policy.requirement(ToolDefinition(name="pay", description="", input_schema={}, risk=risk), {})
        for risk in needs
    }
    assert {risk: required.needs for risk, required in found.items()} == needs


@requirement("rules:policy")
def test_a_denied_call_has_its_reason_and_a_blocking_tool_has_no_rules(tmp_path: Path) -> None:
    policy = load(tmp_path, '[[rules]]\ntool = "*"\nthen = "deny"\nbecause = "not on Sundays"').policy
    definition = ToolDefinition(name="pay", description="", input_schema={})
    assert policy.requirement(definition, {}).denied == "not on Sundays"
    asks = ToolDefinition(name="ask", description="", input_schema={}, execution_mode="blocking", risk="confirm")
    assert (policy.requirement(asks, {}).denied, policy.requirement(asks, {}).needs) == (None, "client")


TOOL = ToolDefinition(name="refund", description="", input_schema={}, risk="read")


ONCE_FAULTS = [
    ("once = []", "once"),
    ('once = ["payment_id"]', "is not a JSON pointer"),
    ('once = [""]', "once"),
    ('once = ["/a", "/a"]', "names a pointer twice"),
    ("once_days = 3", "goes with once"),
    ('once = ["/a"]\nonce_days = 0', "once_days"),
    (f"once = {[f'/{n}' for n in range(11)]}", "once"),
]
"""What may not stand in the table of a tool."""


@requirement("rules:once")
def test_without_its_key_a_call_needs_a_person_and_no_rule_takes_that_away(tmp_path: Path) -> None:
    text = '[tools."refund"]\nonce = ["/id"]\n[[rules]]\ntool = "refund"\nthen = "{}"\n'
    policy = load(tmp_path, text.format("allow")).policy
    assert policy.requirement(TOOL, {"id": 1}).needs is None
    missing = policy.requirement(TOOL, {})
    assert (missing.needs, missing.has_no_key, missing.shares) == ("human", True, ())
    assert load(tmp_path, text.format("deny")).policy.requirement(TOOL, {}).denied is not None


@requirement("rules:faults", "rules:once")
@pytest.mark.parametrize(
    ("text", "said"),
    [*TABLE_FAULTS, *RULE_FAULTS, *((f'[tools."refund"]\n{line}\n', said) for line, said in ONCE_FAULTS)],
)
def test_a_wrong_value_is_told_with_file_and_key_and_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        load(tmp_path, text)
    assert refused.value.message.startswith(f"{str(tmp_path / 'planwarden.toml')!r}: ")
    assert said in refused.value.message and len(refused.value.message) < 1_000


@pytest.mark.parametrize(("text", "said"), PROMISE_FAULTS)
def test_a_wrong_value_where_text_or_a_list_is_right_is_one_fault(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        load(tmp_path, text)
    where = f"{str(tmp_path / 'planwarden.toml')!r}: promises[0].{said}"
    assert refused.value.message.startswith(where) and ";" not in refused.value.message


def test_a_format_of_the_log_that_the_environment_alone_names_wrongly_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArguments, match="PLANWARDEN_LOG_FORMAT is 'xml'; use 'text' or 'json'"):
        load_settings(home=tmp_path, environment={"PLANWARDEN_LOG_FORMAT": "xml"})
    assert load_settings(home=tmp_path, environment={"PLANWARDEN_LOG_FORMAT": ""}).observation.log_format is None


def test_whom_to_escalate_to_without_a_time_is_told(tmp_path: Path) -> None:
    for table, said in (("approvals", "approvals"), ("tools.a", 'tools."a"')):
        with pytest.raises(InvalidArguments, match=f"{said}.escalate_to does nothing without escalate_after_s"):
            load(tmp_path, f"[{table}]\nescalate_to = ['bob']")


def test_a_file_may_begin_with_the_mark_that_editors_on_windows_write(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeff[approvals]\nquorum = 2\n").tables.approvals.quorum == 2


def test_every_fault_is_told_at_once_up_to_ten(tmp_path: Path) -> None:
    with pytest.raises(InvalidArguments) as refused:
        load(tmp_path, '[approvals]\nquorum = 0\nx = 1\ncritical = "z"\n[exec]\n[inbox]\nport = 0\n')
    told = refused.value.message.split("; ")
    assert [
        fault.removeprefix(f"{str(tmp_path / 'planwarden.toml')!r}: ").removeprefix("unknown key ").partition(":")[0]
        for fault in told
    ] == [
        "approvals.critical",
        "approvals.quorum",
        "approvals.x",
        "inbox.port",
        "exec",
    ]
    with pytest.raises(InvalidArguments) as refused:
        load(tmp_path, "".join(f"{'k' * 5_000}{number} = 1\n" for number in range(50)))
    assert len(refused.value.message) < 10 * (MAX_PATH_CHARS + 50) + 500


def test_a_message_holds_no_value(tmp_path: Path) -> None:
    for text in (
        '[store]\nurl = ["postgresql://ann:geheim@db/x"]',
        '[approvals]\nquorum = "geheim"',
        '[execution]\ntoolMode = "geheim"',
        '[otel]\nendpoint = "https://geheim@collector"',
        '[tools."x"]\nrisk = "geheim"',
    ):
        with pytest.raises(InvalidArguments) as refused:
            load(tmp_path, text)
        assert "geheim" not in refused.value.message


def test_the_digest_of_the_policy_is_the_same_in_every_version(tmp_path: Path) -> None:
    text = '[tools."x"]\nrisk = "read"\ncapabilities = ["a"]\nonce = ["/id"]\n[approvals]\nquorum = 2\n'
    assert load(tmp_path, text).policy.policy_digest[:12] == "c08f12ca960f"


TOOL_MODULE = """
import planwarden

@planwarden.tool(risk="read")
def price(item: str) -> int:
    return 5
"""


def test_the_tools_of_an_installed_package_are_in_the_catalogue_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text("[planwarden.tools]\nshop = shop_tools\n", encoding="utf-8")
    (tmp_path / "shop_tools.py").write_text(TOOL_MODULE, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    # Tests share what was found before.
    monkeypatch.setattr("planwarden.server.settings.catalogue.entry_points", entry_points)
    definition = build_registry(Settings(home=tmp_path)).get("price")
    assert definition is not None and definition.source == "shop"


def test_a_file_that_cannot_be_read_is_named_once_and_in_plain_words(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.toml"
    path.write_bytes(b"# \xff\n")
    with pytest.raises(InvalidArguments) as refused:
        load_settings(home=tmp_path, environment={})
    assert refused.value.message == f"{str(path)!r} is not UTF-8 text"
    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidArguments) as refused:
        load_settings(home=tmp_path, environment={})
    assert refused.value.message == f"cannot read {str(path)!r}: Is a directory"
