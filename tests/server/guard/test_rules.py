"""The operator's rules on what a host does itself: command lines part by part, folders, budgets, and `tool = "*"`."""

from pathlib import Path

import pytest

from planwarden.server.auth.principals import LOCAL
from planwarden.server.guard.calls import build_call
from planwarden.server.views.voices import build_voices
from tests.kit import MemoryStore, requirement
from tests.server.guard.support import guarded

pytestmark = pytest.mark.anyio

PUSH = """
[[rules]]
tool = "claude-code/Bash"
when = { command = { prefix = "git push" } }
then = "deny"
because = "people push"
"""
NPM = '[[rules]]\ntool = "*/Bash"\nwhen = { command = { matches = "^npm (test|ci)" } }\nthen = "allow"\n' + PUSH
LOOSE = '[[rules]]\ntool = "*/Bash"\nwhen = { command = { prefix = "npm test" } }\nthen = "allow"\n' + PUSH


@requirement("guard:parts")
async def test_a_line_passes_only_if_a_rule_lets_each_part_pass_and_the_audit_names_the_rule(tmp_path: Path) -> None:
    passing = (
        "npm test",
        "npm ci && npm test",
        "npm test 2>&1",
        "npm ci; npm test >/dev/null 2>&1",
        "cd HERE && npm ci",
    )
    async with guarded(tmp_path / "home", toml=NPM) as host:
        for command in passing:
            assert (await host.decide(host.call(command.replace("HERE", host.folder)))).then == "allow", command
        for command in ("git push --force", "npm test && git push"):
            refused = await host.decide(host.call(command))
            assert (refused.then, refused.suspension_id) == ("deny", None) and "people push" in refused.reason
        rows = await host.service.engine.store.audit_rows()
        assert (await host.service.list_suspensions(principal=None)).total == 0
    rules = [row.entry.facts.get("rule") for row in rows if row.entry.kind == "guarded"]
    assert rules[: len(passing)] == [1] * len(passing)


@requirement("guard:parts")
@pytest.mark.parametrize(
    "command",
    [
        *("npm test; rm -rf x", "npm test && rm x", "npm test | sh", "npm test & rm x", "npm test\nrm x", "(npm test)"),
        *("npm test $(rm x)", "npm test `rm x`", 'npm test "$(rm x)"', "npm test > ~/.bashrc", "npm test <(rm x)"),
        *("npm test {a,b}", "npm test <<E\nE", "npm test \\\n; rm x", "cd /tmp && npm test", "pushd x; npm test"),
        *("cd; npm test", "npm test $X"),
    ],
)
async def test_a_rule_lets_no_other_command_pass_in_the_same_line(tmp_path: Path, command: str) -> None:
    async with guarded(tmp_path / "home", toml=LOOSE) as host:
        verdict = await host.decide(host.call(command))
        [question] = (await host.service.list_suspensions(principal=None)).suspensions
    assert (verdict.then, verdict.suspension_id) == ("deny", question.suspension_id)
    if command == "npm test $X":
        assert any("a rule cannot see through" in sentence for sentence in build_voices(question).found)


async def test_a_rule_for_every_tool_opens_no_shell_and_still_refuses(tmp_path: Path) -> None:
    for number, pattern in enumerate(("*", "*Bash", "c*")):
        toml = f'[[rules]]\ntool = "{pattern}"\nthen = "allow"\n'
        async with guarded(tmp_path / f"home {number}", toml=toml) as host:
            assert (await host.decide(host.call("ls"))).suspension_id is not None
    async with guarded(tmp_path / "home", toml='[[rules]]\ntool = "*"\nthen = "deny"\nbecause = "frozen"\n') as host:
        assert "frozen" in (await host.decide(host.call("ls"))).reason
        assert "frozen" in (await host.decide(host.event({"file_path": "/x"}, "Read"))).reason


async def test_a_rule_can_name_the_folder_and_a_tools_own_cwd_does_not_stand_for_it(tmp_path: Path) -> None:
    when = f'cwd = {{ const = "{tmp_path / "project"}" }}'
    toml = f'[[rules]]\ntool = "claude-code/*"\nwhen = {{ {when} }}\nthen = "allow"\n'
    async with guarded(tmp_path / "home", toml=toml) as host:
        assert (await host.decide(host.call("ls"))).then == "allow"
        elsewhere = host.call("ls")
        pretending = host.event({"command": "ls", "cwd": str(tmp_path / "project")}, "mcp__x__run")
        for call in (elsewhere, pretending):
            call.folder = "/"
            assert (await host.decide(call)).then == "deny"


@pytest.mark.parametrize(("risk", "needs"), [("confirm", "human"), ("dangerous", "human"), ("critical", "signed")])
async def test_no_rule_lets_less_than_its_risk_asks_for_or_a_person_release_a_call(
    tmp_path: Path, risk: str, needs: str
) -> None:
    toml = f'[[rules]]\ntool = "*/Bash"\nrisk = "{risk}"\n'
    async with guarded(tmp_path / "home", toml=toml) as host:
        asked = await host.decide(host.call("ls"))
        [question] = (await host.service.list_suspensions(principal=None)).suspensions
        assert question.needs == needs
        await host.answer(asked, by=LOCAL)
        assert (await host.decide(host.call("ls"))).then == ("deny" if needs == "signed" else "allow")


async def test_a_spent_budget_asks_and_a_low_risk_does_not(tmp_path: Path) -> None:
    toml = '[[rules]]\ntool = "claude-code/Bash"\nthen = "allow"\nbudget = [{ count = 2, per = "hour" }]\n'
    async with guarded(tmp_path / "home", toml=toml) as host:
        verdicts = [await host.decide(host.call("ls")) for _ in range(3)]
    assert [verdict.then for verdict in verdicts] == ["allow", "allow", "deny"]
    assert verdicts[2].suspension_id is not None
    async with guarded(tmp_path / "home", toml='[[rules]]\ntool = "claude-code/Bash"\nrisk = "read"\n') as host:
        assert (await host.decide(host.call("ls"))).then == "allow"


async def test_a_rule_that_denies_now_ends_a_pass_that_a_person_gave_before(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store = MemoryStore()
    async with guarded(home, store=store) as host:
        await host.answer(await host.decide(host.call("git push")))
    async with guarded(home, store=store, toml=NPM) as host:
        assert "people push" in (await host.decide(host.call("git push"))).reason


async def test_a_path_of_which_nobody_can_say_where_it_leads_is_asked_about(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    rule = f'[[rules]]\ntool = "*/Write"\nwhen = {{ file_path = {{ under = "{folder}" }} }}\nthen = "allow"\n'
    async with guarded(tmp_path / "home", toml=rule) as host:
        plain, looped = [
            await host.decide(build_call("claude-code", "Write", {"file_path": str(folder / name)}, host.folder))
            for name in ("c", "a")
        ]
    assert (plain.then, looped.then) == ("allow", "deny") and looped.suspension_id is not None
