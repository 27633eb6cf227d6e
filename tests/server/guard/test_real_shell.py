"""What the guard says about a command line, held against what real shells do with it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.server.guard.calls import build_call
from planwarden.server.guard.judging import Judge
from planwarden.server.guard.opening import build_judge
from planwarden.server.settings.configuration import load_settings
from tests.fuzz.jail import SHELLS, Jail, is_possible, open_jail
from tests.requirements import requirement

RULES = r"""
[[rules]]
tool = "claude-code/Bash"
when = { command = { matches = "git push( .*)?" } }
then = "deny"
because = "people push"

[[rules]]
tool = "*/*"
when = { command = { matches = '(npm|git|a)([^a-z](.|\n)*)?'  } }
then = "allow"
"""
BLANKS = "\u00a0\u3000\u2003\u0085\u000b\u000c\u001c"


@pytest.fixture
async def jail(tmp_path: Path) -> AsyncGenerator[Jail]:
    if not is_possible():
        pytest.skip("the system has no namespaces to lock a shell up in")
    root = tmp_path / "jail"
    root.mkdir()
    programs = ("npm", "git", "a", "push", *(f"{blank}npm" for blank in BLANKS), *(f"npm{blank}" for blank in BLANKS))
    async with open_jail(root, programs) as opened:
        yield opened


def build_judge_with(root: Path, rules: str) -> Judge:
    home = root / "home"
    home.mkdir()
    (home / "planwarden.toml").write_text(rules)
    return build_judge(load_settings(home=home, environment={"HOME": str(root)}))


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return build_judge_with(tmp_path, RULES)


def is_let_pass(judge: Judge, command: str, **arguments: JsonValue) -> bool:
    call = build_call("claude-code", "Bash", {"command": command, **arguments}, "/work")
    verdict = judge.judge(call)
    return verdict is not None and verdict.then == "allow"


def judge_line(judge: Judge, command: str) -> str:
    """Return why the line is denied; nothing where it is not."""
    verdict = judge.judge(build_call("claude-code", "Bash", {"command": command}, "/work"))
    return verdict.reason if verdict is not None and verdict.then == "deny" else ""


@pytest.mark.anyio
@requirement("guard:parts")
@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
async def test_a_blank_that_the_shell_does_not_know_makes_another_program_and_is_asked_about(
    jail: Jail, judge: Judge, blank: str
) -> None:
    assert is_let_pass(judge, "npm test")
    for line in (f"{blank}npm test", f"npm{blank} test", f"npm{blank}", f"a; {blank}npm"):
        assert not is_let_pass(judge, line)
        for shell in SHELLS:
            ran, _ = await jail.run(shell, line)
            assert any(blank in words[0] for words in ran)


@pytest.mark.anyio
@requirement("guard:parts")
@pytest.mark.parametrize(
    "line",
    [
        *(
            *("git push", "git  push", "git\tpush", "git 'push'", 'git pu""sh', "g\\it push", "'git' \\push"),
            "git \\\n push",
        ),
        *("a && git  push", "git  push >/dev/null", "X=1 git push", "(git  push)", "{ git push; }", "! git push"),
        *("if git  push; then a; fi", 'a "$(git  push)"', "a `git push`", "git  push -f | a"),
    ],
)
async def test_what_a_rule_denies_is_denied_however_the_shell_lets_it_be_written(
    jail: Jail, judge: Judge, line: str
) -> None:
    verdict = judge.judge(build_call("claude-code", "Bash", {"command": line}, "/work"))
    assert verdict is not None and verdict.then == "deny" and "people push" in verdict.reason
    for shell in SHELLS:
        ran, _ = await jail.run(shell, line)
        assert any(words[:2] == ["git", "push"] for words in ran)


WRAPPED = (
    *("command git push", "exec git push", "exec -a b git push", "eval git push", "eval 'git  push'", "time git push"),
    *(
        "trap 'git push' EXIT",
        "/sh/dash -c 'git push'",
        '/sh/bash -c "git push"',
        "/sh/bash -ec 'a; git push'",
        "/sh/dash -c 'exec git push'",
    ),
    *("/bin/git push", "command -p /bin/git push", "/sh/bash -o posix -c 'git push' x"),
)
"""Lines that the shells of the jail run by themselves."""


@pytest.mark.anyio
@requirement("guard:parts")
@pytest.mark.parametrize("line", WRAPPED)
async def test_what_a_rule_denies_is_denied_behind_what_runs_it(jail: Jail, judge: Judge, line: str) -> None:
    assert "people push" in judge_line(judge, line)
    for shell in SHELLS:
        ran, _ = await jail.run(shell, line)
        # One shell has no `time` and no `exec -a` of its own.
        assert any(words[:2] == ["git", "push"] for words in ran) or (shell, line.split()[0]) in NOT_OF_DASH


NOT_OF_DASH = (("dash", "time"), ("dash", "exec"))

EVERYTHING = r"""
[[rules]]
tool = "claude-code/Bash"
when = { command = { matches = "git (push|pull)( .*)?" } }
then = "ask"

[[rules]]
tool = "claude-code/*"
then = "allow"
"""


@requirement("guard:parts")
@pytest.mark.parametrize("rule", ["ask", "deny"])
@pytest.mark.parametrize(
    "line",
    [
        *WRAPPED,
        *(
            "env git push",
            "env X=1 git push",
            "sudo git push",
            "nohup git push",
            "nice -n 5 git push",
            "xargs git push",
        ),
        *(
            "timeout 5 git push",
            "busybox sh -c 'git push'",
            "git -C /x push",
            "git -c a=b push",
            "find x -exec git push ;",
        ),
    ],
)
def test_where_everything_else_is_let_pass_no_wrapper_leads_around_a_rule(tmp_path: Path, line: str, rule: str) -> None:
    judge = build_judge_with(tmp_path, EVERYTHING.replace('"ask"', f'"{rule}"'))
    assert is_let_pass(judge, "npm test") and is_let_pass(judge, "timeout 5 npm test")
    assert not is_let_pass(judge, line)
    if rule == "deny":
        assert judge_line(judge, line)


@requirement("guard:parts")
@pytest.mark.parametrize(
    "line", ["env --x git push", "git -c alias.p=push p", "echo git push | sh", "echo push | xargs git"]
)
def test_a_form_of_a_wrapper_that_nobody_knows_is_asked_about(tmp_path: Path, line: str) -> None:
    assert not is_let_pass(build_judge_with(tmp_path, EVERYTHING), line)


@requirement("guard:parts")
@pytest.mark.parametrize(
    "line", ["env git push", "sudo npm test", "bash -c 'npm test'", "/x/npm test", "timeout 5 npm test"]
)
def test_no_rule_that_lets_a_command_pass_lets_it_pass_behind_a_wrapper(judge: Judge, line: str) -> None:
    assert not is_let_pass(judge, line)


@pytest.mark.anyio
@requirement("guard:parts")
@pytest.mark.parametrize(
    "line",
    [
        *("a >/dev/null b", "a 2>&1 b", "a >f", "a 2>f", "a >/dev/nullx", "a </dev/null x", ">/dev/null a", "a>f"),
        *(
            *("a *", "a ?", "a [w]*", "a ~", "a ~root", "a {b,c}", "a =npm", "a x=~", "a \\ \\\npush", "a $HOME"),
            *("npm #x", "X=1 npm"),
        ),
        *("a |& npm", "time a", "a \\", "a '", "a\rb", "a \x01"),
    ],
)
async def test_what_a_shell_works_out_first_is_asked_about(judge: Judge, line: str) -> None:
    assert not is_let_pass(judge, line)


@pytest.mark.anyio
@requirement("guard:parts")
@pytest.mark.parametrize(
    "line",
    ["a >/dev/null 2>&1", "npm test &>/dev/null; a", "git log -1 </dev/null | a", "npm 'x y' \\\n  \"z\"", "a HEAD~1"],
)
async def test_what_every_shell_reads_alike_is_let_pass(jail: Jail, judge: Judge, line: str) -> None:
    assert is_let_pass(judge, line)
    for shell in SHELLS:
        ran, files = await jail.run(shell, line)
        assert ran and {words[0] for words in ran} <= {"a", "npm", "git"} and files == []


@pytest.mark.parametrize(
    ("host", "tool", "arguments"),
    [
        ("claude-code", "Bash", {"dangerouslyDisableSandbox": True}),
        ("claude-code", "Bash", {"shell": "python3"}),
        ("claude-code", "PowerShell", {}),
        ("codex", "Bash", {"shell": "/tmp/sh"}),
        ("codex", "shell", {"with_escalated_permissions": True}),
        ("codex", "shell_command", {"sandbox_permissions": "require_escalated"}),
        ("opencode", "bash", {"workdir": "../other"}),
        ("opencode", "bash", {"workdir": "~"}),
        ("gemini", "run_shell_command", {"dir_path": ["/"]}),
        ("cursor", "Shell", {"env": {"PATH": "/tmp"}}),
    ],
)
def test_an_argument_that_nobody_knows_makes_a_command_that_is_asked_about(
    judge: Judge, host: str, tool: str, arguments: dict[str, JsonValue]
) -> None:
    verdict = judge.judge(build_call(host, tool, {"command": "npm test", **arguments}, "/work"))
    assert verdict is None


@pytest.mark.parametrize(
    ("host", "tool", "place"),
    [
        ("codex", "Bash", "workdir"),
        ("codex", "local_shell", "working_directory"),
        ("gemini", "run_shell_command", "dir_path"),
        ("gemini", "run_shell_command", "directory"),
        ("opencode", "bash", "workdir"),
        ("cursor", "Shell", "working_directory"),
    ],
)
def test_a_folder_that_the_call_names_is_the_one_that_rules_see(
    tmp_path: Path, host: str, tool: str, place: str
) -> None:
    rule = '[[rules]]\ntool = "*/*"\nwhen = { cwd = { in = ["/shop", "/shop/web"] } }\nthen = "allow"\n'
    judge = build_judge_with(tmp_path, rule)

    def is_let(where: str) -> bool:
        verdict = judge.judge(build_call(host, tool, {"command": "npm test", place: where}, "/shop"))
        return verdict is not None and verdict.then == "allow"

    assert [is_let(where) for where in ("", ".", "web", "/shop/", "/other", "/", "api")] == [True] * 4 + [False] * 3
