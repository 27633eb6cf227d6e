"""What a person types at the commands that change something, and what those say that have nothing to show or to do."""

import json
from collections.abc import Callable

import pytest
from anyio.from_thread import start_blocking_portal
from pydantic import JsonValue

from tests.kit import requirement
from tests.server.cli.support import Cli, CommandResult, step
from tests.support.receiver import reply_with, serve_receiver

Typing = Callable[..., CommandResult]
FIND = step("find", "find", {"topic": "x"})


@requirement("approval:grants")
def test_a_grant_is_made_by_a_typed_yes_and_the_list_says_why_one_lets_nothing_through(
    cli: Cli, typing: Typing
) -> None:
    assert cli.main("grant", "list").out == "No standing grants.\n"
    add = ("grant", "add", "erase", "--uses", "2", "--for", "1h", "--any-other")
    refused = typing(*add, typed="no\n")
    assert refused.code == 1 and refused.out.endswith("Nothing was allowed.\n")
    made = typing(*add, "--json", typed="y\n").json
    assert (made["toolName"], made["usesLeft"], made["assurance"]) == ("erase", 2, "human")
    tools = cli.home / "tools.py"
    tools.write_text(tools.read_text().replace("Delete records", "Delete all"))
    assert "stale: the tool changed\n" in cli.main("grant", "list").out
    second = typing(*add, "--json", typed="yes\n").json["grantId"]
    assert cli.main("grant", "revoke", second[:8]).out == "The grant is over.\n"
    assert "Z  over\n" in cli.main("grant", "list").out
    for words, said in (
        ("grant add erase --uses 1 --for 3x", "'3x' is not a duration; write 30m, 2h or 90d"),
        ("grant add erase --uses 1 --for 1h --arg a=1 --arg a=2", "--arg names 'a' twice"),
        ("once forget erase --key a=1 --key a=[", "--key names 'a' twice"),
    ):
        assert cli.main(*words.split()).err == f"planwarden: {said}\n"


@requirement("grants:step")
def test_what_a_step_of_a_saved_plan_calls_is_shown_before_it_is_allowed(cli: Cli, typing: Typing) -> None:
    (cli.home / "plans").mkdir()
    loop = step("a", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2], retry={"attempts": 3})
    cli.set_risk("hang", "dangerous")
    calls: list[JsonValue] = [{"toolName": "hang", "arguments": {}}]
    steps: list[JsonValue] = [loop, {"id": "w", "description": "w", "toolCalls": calls * 25}]
    cli.write("plans/loop.json", {"title": "t", "todoList": steps})
    add = ("grant", "add", "--plan", "loop", "--uses-per-day", "2", "--for", "90m")
    shown = typing(*add, "erase", "--step", "a", typed="n\n")
    for said in (
        *(
            "Step: a of the saved plan loop",
            'ids = [{"$from": "item"}]: any value of the item of',
            "The step is a loop: ",
        ),
        *("3 times at most; each attempt is a use.", "for the next 90 minutes", "Nothing was allowed."),
    ):
        assert said in shown.out, shown.out
    shown = typing(*add, "hang", "--step", "w", typed="")
    assert "no arguments" in shown.out and "and 5 more calls of hang" in shown.out, shown.out


def test_what_ends_with_a_cursor_says_how_to_go_on_and_no_to_a_change_changes_nothing(cli: Cli, typing: Typing) -> None:
    assert cli.main("inbox", "--forget-passphrase").out == "There was no passphrase.\n"
    for _ in range(2):
        cli.main("run", cli.write("plan.json", {"todoList": [FIND]}))
    cli.main("token", "add", "ann")
    assert cli.main("audit", "show", "--cursor", "99").out == "The audit is empty.\n"
    cli.main("token", "add", "bob")
    kept = typing("prune", "--days", "0", typed="n\n")
    assert kept.code == 1 and kept.out.endswith("Nothing was deleted.\n")
    for words, more in (
        ("list --limit 1 --search find", f"more: planwarden --home {cli.home} list --search find --cursor "),
        ("list --limit 1 --executions", f"more: planwarden --home {cli.home} list --executions --cursor "),
        ("tools --limit 1", "more: --cursor 1\n"),
        ("audit show --limit 1", "more: --cursor 1\n"),
    ):
        assert more in cli.main(*words.split()).out, words
    exported = cli.main("audit", "export", "-")
    assert [json.loads(line)["kind"] for line in exported.out.splitlines()] == ["token_added"] * 2
    assert "✓ 2 rows, whole; head 2:" in exported.err
    taken = cli.main("audit", "export", str(cli.home / "none" / "audit"))
    assert taken.code == 1 and "cannot write" in taken.err
    cli.write("planwarden.json", {"mcpServers": {"d": {"url": "https://127.0.0.1:1/mcp"}}})
    assert cli.main("login", "d", "--forget").out == "There was no login.\n"
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write('[inbox]\npassphrase_file = "p"\n')
    refused = cli.main("inbox", "--forget-passphrase")
    assert refused.code == 2 and "planwarden.toml wants a passphrase; remove passphrase_file" in refused.err


@requirement("hook:send")
def test_a_hook_is_sent_and_what_the_server_answers_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_SECRET", "whsec_" + "A" * 44)
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write('\n[hooks.orders]\nplan = "remind"\nsecret_env = "ORDERS_SECRET"\n')
    manners = (reply_with(200), reply_with(401), reply_with(503))
    outcomes = (0, "hook orders  delivered"), (1, "401: the server refuses the signature"), (1, "answered 503")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve_receiver(*manners)) as receiver:
        send = ("hook", "send", "orders", "{}", "--url", f"http://127.0.0.1:{receiver.port}")
        for code, said in outcomes:
            result = cli.main(*send)
            assert result.code == code and said in result.out, result
    for words, said in (
        (("orders", "{}", "--url", "ftp://x"), "--url 'ftp://x' is not the address of a server, such as http://127."),
        (("orders", "{"), "the message is "),
        (("order", "{}"), "did you mean 'orders'?"),
    ):
        refused = cli.main("hook", "send", *words)
        assert refused.code == 2 and said in refused.err


@requirement("guard:files")
def test_a_guard_is_written_after_a_typed_yes_and_not_before(cli: Cli, typing: Typing) -> None:
    install, place = ("guard", "install", "claude-code"), cli.home.parent / ".claude" / "settings.json"
    piped = cli.main(*install)
    assert piped.code == 2 and '"onFailure": "block"' in piped.out and str(place) in piped.out
    assert typing(*install, typed="n\n").out.endswith("Nothing was written.\n") and not place.parent.exists()
    assert typing(*install, "--json", typed="y\n").json == {"host": "claude-code", "files": [str(place)]}
    place.unlink()
    place.mkdir()
    refused = typing(*install)
    assert refused.code == 2 and "is not a file; nothing was written" in refused.err


def test_the_beginning_of_an_id_that_several_have_is_not_taken_for_any_of_them(cli: Cli, typing: Typing) -> None:
    plan = cli.write("plan.json", {"todoList": [FIND]})
    (cli.home / "plans").mkdir()
    cli.write("plans/x.json", {"title": "x", "todoList": [FIND]})
    grant = ("grant", "add", "erase", "--uses", "1", "--for", "1h", "--any-other", "--json")
    add = ("schedule", "add", "x", "--cron", "0 0 1 1 *", "--json")
    makers: dict[str, tuple[Callable[[], CommandResult], str, str, str]] = {
        "schedule": (lambda: cli.main(*add), "scheduleId", "pause", ""),
        "grant": (lambda: typing(*grant, typed="y\n"), "grantId", "revoke", ""),
        "id": (lambda: cli.main("run", plan, "--json"), "threadId", "", "; write more of the one that you mean"),
    }
    for what, (make, key, word, end) in makers.items():
        ids: list[str] = []
        # Two of seventeen begin with the same digit.
        while not (several := [name for name in ids if sum(one[0] == name[0] for one in ids) > 1]):
            ids.append(str(make().json[key]))
        words = (what, word) if word else ("show",)
        refused = cli.main(*words, several[0][0])
        assert refused.code == 2 and f"several {what}s begin with '{several[0][0]}': " in refused.err
        assert all(name[:8] in refused.err for name in several[:2]) and end in refused.err
