"""What a person reads about a wrong table of `planwarden.toml`, and what counts as wrong."""

from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.faults import MAX_PATH_CHARS


def load(folder: Path, text: str) -> Settings:
    (folder / "planwarden.toml").write_text(text, encoding="utf-8")
    return load_settings(home=folder, environment={})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[approvals]\nquorum = 21", "approvals.quorum: must be a whole number (at least 1, at most 20)"),
        ("[approvals]\nquorum = true", "approvals.quorum: must be a whole number (at least 1, at most 20)"),
        ('[approvals]\nquorum = "5"', "approvals.quorum: must be a whole number (at least 1, at most 20)"),
        ("[approvals]\nquorum = 5.0", "approvals.quorum: must be a whole number (at least 1, at most 20)"),
        ("[approvals]\nquorum = 1" + "0" * 400, "approvals.quorum: must be a whole number (at least 1, at most 20)"),
        ("[approvals]\ntrust_caller = 1", "approvals.trust_caller: must be true or false"),
        ('[approvals]\ncritical = "none"', "approvals.critical: must be 'signed' or 'second'"),
        (
            '[approvals]\napprovers = ["a", ""]',
            "approvals.approvers[1]: must be text (not empty, at most 200 characters)",
        ),
        ("[approvals]\nremind_after_s = [1, 0]", "remind_after_s[1]: must be a number (more than 0, at most 2592000)"),
        ("[approvals]\nescalate_after_s = nan", "escalate_after_s: must be a number (at least 0, at most 2592000)"),
        ("[execution]\nwaitSeconds = inf", "execution.waitSeconds: must be a number (at least 0, at most 300)"),
        ("[execution]\nwaitSeconds = 1" + "0" * 400, "waitSeconds: must be a number (at least 0, at most 300)"),
        ('[plans]\nfolders = "plans"', "plans.folders: must be a list (at most 20 entries)"),
        ("[retention]\ndays = 2026-01-01", "retention.days: must be a whole number (at least 1)"),
        ("approvals = 3", "planwarden.toml.approvals: must be a table"),
        ("tools = 3", "planwarden.toml.tools: must be a table"),
        ('[tools."x"]\nonce = ["id"]', "tools.\"x\": once has 'id', which is no JSON pointer (RFC 6901)"),
        ('[tools."x"]\nonce = ["/a", "/a"]', 'tools."x": once names a pointer twice'),
        ('[otel]\nendpoint = "http://["', "otel: endpoint must be http://host:4318 or https://host"),
        ('[otel]\nendpoint = "http://key@h"', "otel: endpoint must be http://host:4318 or https://host"),
        ('[http]\nhost = "x"', "unknown key planwarden.toml.http.host"),
        ("notify = 3", "planwarden.toml.notify: Input should be a valid list"),
        ("[approvals]\nqorum = 1", "unknown key planwarden.toml.approvals.qorum (did you mean 'quorum'?)"),
    ],
)
def test_a_wrong_value_is_told_with_file_key_and_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        load(tmp_path, text)
    assert refused.value.message.startswith(f"{str(tmp_path / 'planwarden.toml')!r}: ")
    assert said in refused.value.message


def test_every_fault_is_told_at_once_up_to_ten(tmp_path: Path) -> None:
    with pytest.raises(InvalidArguments) as refused:
        load(tmp_path, '[approvals]\nquorum = 0\nx = 1\ncritical = "z"\n[exec]\n[inbox]\nport = 0\n')
    told = refused.value.message.split("; ")
    assert [fault.partition("planwarden.toml.")[2].partition(":")[0] for fault in told] == [
        "approvals.quorum",
        "approvals.x",
        "approvals.critical",
        "exec",
        "inbox.port",
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


def test_a_whole_number_stands_for_seconds(tmp_path: Path) -> None:
    whole = load(tmp_path, '[tools."x"]\ntimeout_s = 60\n')
    assert whole.tools["x"].list_changes() == {"timeout_s": 60.0}
    assert whole.policy.policy_digest == load(tmp_path, '[tools."x"]\ntimeout_s = 60.0\n').policy.policy_digest


def test_the_digest_of_the_policy_is_the_same_in_every_version(tmp_path: Path) -> None:
    text = '[tools."x"]\nrisk = "read"\ncapabilities = ["a"]\nonce = ["/id"]\n[approvals]\nquorum = 2\n'
    assert load(tmp_path, text).policy.policy_digest[:12] == "c08f12ca960f"
