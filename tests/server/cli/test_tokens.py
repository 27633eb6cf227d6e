"""`planwarden token`, and what `serve` prints before it serves."""

import pytest

from tests.requirements import requirement
from tests.server.cli.support import Cli


def test_a_token_is_shown_once_and_listed_without_its_secret(cli: Cli) -> None:
    made = cli.main("token", "add", "ann", "--days", "30")
    secret = made.out.strip()
    assert made.code == 0 and secret.startswith("pwt_") and "ann" in made.err and secret not in made.err
    listed = cli.main("token", "list")
    assert "ann  caller  valid, until " in listed.out and secret not in listed.out + listed.err
    [row] = cli.main("token", "list", "--json").json["tokens"]
    assert set(row) == {"tokenId", "principal", "role", "state", "createdAt", "expiresAt", "revokedAt"}
    assert (row["principal"], row["role"], row["state"], row["revokedAt"]) == ("ann", "caller", "valid", None)


def test_add_as_json_is_the_row_with_the_token(cli: Cli) -> None:
    made = cli.main("token", "add", "ann", "--role", "approver", "--json").json
    assert made["token"].startswith("pwt_") and made["role"] == "approver" and made["expiresAt"] is None


def test_revoking_by_id_or_name_ends_tokens_and_says_which(cli: Cli) -> None:
    first, second, other = (cli.main("token", "add", name, "--json").json["tokenId"] for name in ("ann", "ann", "bob"))
    assert cli.main("token", "revoke", other).out.strip() == f"revoked: {other}"
    revoked = cli.main("token", "revoke", "ann", "--json").json["revoked"]
    assert [row["tokenId"] for row in revoked] == [first, second]
    assert {row["state"] for row in cli.main("token", "list", "--json").json["tokens"]} == {"revoked"}
    again = cli.main("token", "revoke", "ann")
    assert again.code == 2 and "token list" in again.err


def test_listing_tokens_creates_no_database(cli: Cli) -> None:
    assert "token add" in cli.main("token", "list").out
    assert cli.main("token", "revoke", "ann").code == 2
    assert not (cli.home / "planwarden.db").exists()


@pytest.mark.parametrize(
    "words", [("token",), ("token", "add"), ("token", "add", "a#b"), ("token", "add", "ann", "--days", "0")]
)
def test_wrong_usage_is_one_sentence(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli.main(*words)
    assert result.code == 2 and len(result.err.strip().splitlines()) == 1


@requirement("network:trust")
def test_a_banner_says_that_the_caller_may_approve_itself(cli: Cli) -> None:
    everybody = ("serve", "--http", "--host", "0.0.0.0")
    (cli.home / "planwarden.toml").write_text("[approvals]\ntrust_caller = true\n")
    for result in (cli.spawn("serve"), cli.spawn(), cli.main(*everybody)):
        assert "trust_caller is on" in result.err and result.out == ""
    (cli.home / "planwarden.toml").write_text("")
    for result in (cli.spawn("serve"), cli.main(*everybody)):
        assert "trust_caller" not in result.err and result.out == ""


@requirement("network:bind")
def test_serving_without_tokens_on_a_public_address_is_refused_with_one_sentence(cli: Cli) -> None:
    result = cli.main("serve", "--http", "--host", "0.0.0.0")
    assert result.code == 2 and len(result.err.strip().splitlines()) == 1
    assert "token add" in result.err and "allowed_hosts" in result.err
