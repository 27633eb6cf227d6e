"""Wrong words and wrong settings are one sentence that names what was meant; help and completion know every command."""

import argparse
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import cast

import pytest
from pydantic import JsonValue

from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.commands.config import SHELLS
from planwarden.server.cli.program import build_parser
from tests.requirements import requirement
from tests.server.cli.support import Cli, clean_environment, command_line, step

NOBODY = "'~no-such-user~/file' begins with the home folder of a user who has none"
WRONG = {
    # The words, and what the sentence says.
    "zzzzzzzz": "there is no command 'zzzzzzzz'; choose from serve, ",
    "run ~no-such-user~/file": NOBODY,
    "audit export ~no-such-user~/file": NOBODY,
    "serve --http --host 0.0.0.0": "`planwarden token add",
    "lsit": "did you mean 'list'?",
    "rnu x": "did you mean 'run'?",
    "run": "PLAN is missing",
    "--home= list": "argument --home: the path is empty",
    "gate uninstall codex -- x": "planwarden gate uninstall codex SERVER",
    "list --limit x": "--limit: 'x' is not a number;",
    "schedule add": "PLAN, --cron are missing",
    "trust": "SERVER is missing",
    "grant": "name a command: list, add, revoke;",
    "list extra": "unexpected argument 'extra'",
    "serve --port 9000": "--host and --port are for HTTP; add --http, or leave them out",
    "grant ad": "did you mean 'add'?",
    "list --limt 3": "did you mean '--limit'?",
    "--homee x list": "did you mean '--home'?",
    "token add ann --role approvr": "did you mean 'approver'?",
    "config print notepad": "there is no host 'notepad'; choose from claude-code, ",
    "call ersae": "did you mean 'erase'?",
}
SENSELESS = [
    *("list --frobnicate", "list --limit 0", "list --cursor foreign", "list --executions --limit 0"),
    *("list --executions --cursor foreign", "list --state asleep", "show", "show nothing", "show x --observations -1"),
    *("reject", "prune --days many", "prune --days -1", "--lis", "serve --port 99999"),
    *("list --limit 999999", "rules replay --days 0", "call"),
    *("grant revoke x", "check", "hook send x", "approve --code x", "show --graph odd", "run x --key "),
    *("serve --port x", "token", "token add a#b", "token add ann --days 0"),
]


@requirement("network:bind")
@pytest.mark.parametrize("words", [*WRONG, *SENSELESS])
def test_wrong_usage_is_one_sentence_that_names_what_was_meant(cli: Cli, words: str) -> None:
    result = cli.main(*words.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("planwarden: ") and result.err.count("\n") == 1
    said = WRONG.get(words, "")
    assert said in result.err and ("did you mean" in result.err) == ("did you mean" in said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("[aprovals]\n", "did you mean 'approvals'?"),
        ("[tools.erase]\nriks = 'read'\n", "did you mean 'risk'?"),
        ("[tools.ersae]\nrisk = 'read'\n[tools]\npython = ['tools.py']\n", "did you mean 'erase'?"),
        ('[[notify]]\nkind = "ntfy"\nurl = "http://x.example/x"\n', "notify[0].url: plain http is allowed for this"),
    ],
)
def test_a_wrong_key_of_the_settings_stops_a_command_with_one_sentence(cli: Cli, settings: str, said: str) -> None:
    (cli.home / "planwarden.toml").write_text(settings)
    result = cli.main("tools")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1) and said in result.err


def find_commands(parser: CommandParser, *path: str) -> Iterator[tuple[str, object]]:
    groups = [action for action in parser.actions if action.nargs == argparse.PARSER]
    if not groups:
        yield " ".join(path), parser.get_default("handler")
    for group in groups:
        for name, command in cast("Mapping[str, CommandParser]", group.choices).items():
            yield from find_commands(command, *path, name)


def test_every_command_has_a_handler_and_is_in_the_help_and_the_completion_of_every_shell(cli: Cli) -> None:
    shown = cli.main("--help")
    assert shown.code == 0 and "exit codes:" in shown.out
    scripts = [cli.main("completion", shell).out for shell in SHELLS]
    for words, handler in find_commands(build_parser()):
        assert callable(handler)
        assert re.search(rf"^    {words.split()[0]} ", shown.out, re.MULTILINE)
        assert all(word in script for word in words.split() for script in scripts), words
    assert re.fullmatch(r"planwarden \d+\.\d+\.\d+\S*\n", cli.main("--version").out)


ASK = """
source /dev/stdin <<< "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_planwarden; echo "${COMPREPLY[@]}"
"""


def test_bash_offers_what_may_follow(cli: Cli) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = cli.main("completion", "bash").out
    for line, offered in (
        ("a", "approve audit"),
        ("--home x can", "cancel"),
        ("grant list --op", "--open"),
        ("token add x --role ", "caller approver"),
        ("list --limit ", ""),
    ):
        command = [bash, "--norc", "-c", ASK, "bash", "planwarden", *line.split(" ")]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, env={"SCRIPT": script})
        assert set(answer.stdout.split()) == set(offered.split()), line


@pytest.mark.skipif(sys.platform != "linux", reason="others lack /dev/full")
@pytest.mark.parametrize(
    ("words", "streams", "code", "said"),
    [
        ("run -", "<&-", 2, "cannot read the plan in standard input: "),
        ("list --json", ">&-", 0, ""),
        ("list", ">/dev/full", 1, "cannot write: No space left on device"),
        ("list --json", ">/dev/full", 1, "cannot write: No space left on device"),
        ("completion bash", ">/dev/full", 1, "cannot write: No space left on device"),
    ],
)
def test_a_standard_stream_that_is_missing_or_full_is_no_crash(
    cli: Cli, words: str, streams: str, code: int, said: str
) -> None:
    command = command_line("--home", str(cli.home), *words.split())
    script = ["sh", "-c", f'exec "$@" {streams}', "sh", *command]
    done = subprocess.run(script, capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, done


@requirement("display:invisible")
def test_an_error_and_a_json_document_show_what_is_hidden_in_what_they_quote(cli: Cli) -> None:
    hidden = "\x1b[2J\u202e\u200b"
    call: JsonValue = {"toolName": "calculator", "arguments": {f"expression{hidden}": "1"}}
    wrong = cli.write("wrong.json", {"todoList": [{"id": "a", "description": "d", "toolCalls": [call]}]})
    needs: JsonValue = {"type": "object", "required": [hidden], "properties": {hidden: {"type": "integer"}}}
    finding = step("find", "find", {"topic": "x"})
    cli.write("plans/weekly.json", {"title": f"a{hidden}", "inputs": needs, "todoList": [finding]})
    started = cli.main("run", "weekly", "--input", f"{hidden}=1", "--json")
    results = [
        cli.main("run", wrong),
        cli.main("check", wrong, "--json"),
        cli.main("schedule", "add", "weekly", "--cron", "0 9 * * 1", "--input", f"z{hidden}=1"),
        cli.main("show", str(started.json["threadId"]), "--json"),
    ]
    assert [result.code for result in results] == [2, 2, 2, 0]
    for result in (started, *results):
        assert not {*hidden} - {*"[2J"} & {*result.out, *result.err}
    assert started.json["goal"] == results[-1].json["goal"] == f"a{hidden}"


def test_a_taken_port_is_named_in_plain_words(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli.main("serve", "--http", "--port", str(port))
    assert (
        result.err
        == f"planwarden: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --host or --port\n"
    )
