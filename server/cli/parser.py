"""The command line as an argument parser: every command, its arguments and the name of its handler.

A handler is named as `MODULE:FUNCTION` in `planwarden.server.cli.commands`. `planwarden.server.main` imports it when
its command runs, so that no command waits for the imports of another one.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from planwarden.agent.common.suggestions import did_you_mean
from planwarden.server.cli.exit_codes import EXIT_CODES, USAGE
from planwarden.server.cli.hosts import CLIENTS

if TYPE_CHECKING:
    # The class is private in argparse, and generic only for type checkers.
    Subparsers = argparse._SubParsersAction["Parser"]  # pyright: ignore[reportPrivateUsage]


MAX_QUOTED_CHARS = 200
SHELLS = ("bash", "zsh", "fish")


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence, with the word that was probably meant."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"planwarden: {message}; see `{self.prog} --help`\n")

    # The overloads of argparse say only which type of namespace comes back.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuses what it does not know here, because each command knows only its own options."""
        words = list[str](sys.argv[1:] if args is None else args)
        self._refuse_unknown(self._find_unknown_option(words))
        parsed, unknown = super().parse_known_args(words, namespace)
        self._refuse_unknown(unknown)
        return parsed, unknown

    def _find_unknown_option(self, words: Sequence[str]) -> Sequence[str]:
        """Returns the first unknown option in front of everything else, which would make its value a command."""
        place = 0
        while place < len(words) and len(words[place]) > 1 and words[place].startswith("-") and words[place] != "--":
            name, has_value, _ = words[place].partition("=")
            action = self._option_string_actions.get(name)
            if action is None:
                return [words[place]]
            place += 1 if has_value or action.nargs == 0 else 2
        return []

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        if words:
            name = words[0].partition("=")[0]
            hint = did_you_mean(name, self._option_string_actions) if name.startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(words)[:MAX_QUOTED_CHARS]}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            kind = "command" if action.nargs == argparse.PARSER else str(action.metavar or action.dest).lower()
            hint = did_you_mean(str(value), known) or f"; choose from {', '.join(known)}"
            self.error(f"there is no {kind} {str(value)[:MAX_QUOTED_CHARS]!r}{hint}")


class CommandGroup(msgspec.Struct, frozen=True):
    """Adds commands to one level of the command line."""

    subparsers: "Subparsers"
    options: Parser
    """--home and --model, which every command takes."""
    server_options: Parser
    """--mcp-config, which commands take that may call tools."""

    def add(self, name: str, handler: str, text: str, *, has_json: bool = True, uses_servers: bool = False) -> Parser:
        """Add a command and return its parser, which still lacks the command's own arguments."""
        parents = [self.options, self.server_options] if uses_servers else [self.options]
        parser = self.subparsers.add_parser(name, help=text, description=text, parents=parents, allow_abbrev=False)
        parser.set_defaults(handler=handler)
        if has_json:
            parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
        else:
            parser.set_defaults(json=False)
        return parser

    def add_group(self, name: str, commands: str, text: str) -> "CommandGroup":
        """Add a command that has sub-commands; `commands` names them for its usage line."""
        parser = self.subparsers.add_parser(name, help=text, description=text)
        subparsers = parser.add_subparsers(metavar=commands, required=True, parser_class=Parser)
        return CommandGroup(subparsers, self.options, self.server_options)


def build_parser() -> Parser:
    """Returns the parser of the whole command line."""
    parser = Parser(
        prog="planwarden",
        description="Runs plans durably, proves every promised tool call, and waits for a person where it matters.\n"
        "Without a command it serves MCP over standard input and output.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_build_options(None), _build_server_options(None)],
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"planwarden {version('planwarden')}")
    parser.set_defaults(handler="serve:handle_serve", json=False, http=False, accepts_trust=False)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    # Without a default, so that a command does not reset what was given before its name.
    options, server_options = _build_options(argparse.SUPPRESS), _build_server_options(argparse.SUPPRESS)
    commands = CommandGroup(subparsers, options, server_options)
    _add_serve(commands)
    _add_executions(commands)
    _add_decisions(commands)
    _add_tools(commands)
    _add_approvals(commands)
    _add_store(commands)
    _add_tokens(commands)
    _add_config(commands)
    return parser


def _build_options(default: str | None) -> Parser:
    options = Parser(add_help=False, argument_default=default)
    options.add_argument(
        "--home",
        type=Path,
        metavar="DIR",
        help="folder of database and settings; default: PLANWARDEN_HOME, else the platform's data folder",
    )
    options.add_argument(
        "--model",
        help="caller, scripted:FILE, or a provider's model, such as anthropic:NAME; "
        "default: PLANWARDEN_MODEL, else planwarden.toml, else caller",
    )
    return options


def _build_server_options(default: str | None) -> Parser:
    options = Parser(add_help=False, argument_default=default)
    options.add_argument(
        "--mcp-config", type=Path, metavar="FILE", help="downstream servers; default: planwarden.json in the home"
    )
    return options


def _add_serve(commands: CommandGroup) -> None:
    serve = commands.add(
        "serve",
        "serve:handle_serve",
        "Serve MCP over standard input and output, or over HTTP.",
        has_json=False,
        uses_servers=True,
    )
    serve.add_argument("--http", action="store_true", help="serve Streamable HTTP at /mcp instead")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; one that other machines can reach needs tokens and allowed_hosts; "
        "default %(default)s",
    )
    serve.add_argument("--port", type=_port, default=8765, help="port to listen on; default %(default)s")
    serve.add_argument(
        "--i-know-the-caller-can-approve-itself",
        dest="accepts_trust",
        action="store_true",
        help="allow [approvals] trust_caller on an address that other machines can reach",
    )


def _add_executions(commands: CommandGroup) -> None:
    commands.add(
        "init", "init:handle_init", "Make the folder with settings, a tool and a plan that runs, where there are none."
    )
    demo = commands.add(
        "demo", "demo:handle_demo", "Show the main job: a plan, real tools, a killed process, a confirmation."
    )
    demo.add_argument("--yes", action="store_true", help="answer the confirmation with yes")
    run = commands.add("run", "run:handle_run", "Run a plan and ask its questions here.", uses_servers=True)
    run.add_argument("plan", metavar="PLAN.json", help="file of the plan, or - for standard input")
    run.add_argument(
        "--yes",
        action="store_true",
        help="approve every call and confirmation except critical ones, and without a terminal except dangerous ones; "
        "forms are still asked",
    )
    run.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key, 1 to 200 characters: run again with the same key, it goes on with the run that it began",
    )
    goal = commands.add(
        "run-goal",
        "run:handle_run_goal",
        "Make a plan for a goal with the configured model, and run it.",
        uses_servers=True,
    )
    goal.add_argument("goal", metavar="GOAL", help="the goal, as one argument")
    goal.add_argument("--yes", action="store_true", help="as for run")
    goal.add_argument("--key", metavar="KEY", help="as for run")
    call = commands.add(
        "call", "call:handle_call", "Call one tool, with the checks and the record of a plan.", uses_servers=True
    )
    call.add_argument("tool", metavar="TOOL", help="name of the tool, as `planwarden tools` lists it")
    call.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument; the value is JSON, or text where the tool takes text",
    )
    call.add_argument("--json-args", metavar="JSON", help="all arguments as one JSON object; --arg adds to it")
    call.add_argument("--yes", action="store_true", help="as for run")
    listing = commands.add(
        "list", "show:handle_list", "List open questions and the newest executions.", uses_servers=True
    )
    listing.add_argument(
        "--limit", type=int, default=20, metavar="N", help="number of questions, at most 100; default %(default)s"
    )
    listing.add_argument("--cursor", help="continue after the page that printed this cursor")
    show = commands.add("show", "show:handle_show", "Show a thread's newest execution.", uses_servers=True)
    show.add_argument(
        "thread",
        metavar="THREAD",
        nargs="?",
        help="a threadId, as `planwarden list` shows it, or the beginning of one; default: the newest",
    )
    show.add_argument("--observations", type=int, metavar="N", help="also show the events after event N; 0 for all")
    show.add_argument(
        "--artifact", metavar="ID", help="instead write one large result, complete and unchanged, to standard output"
    )


def _add_decisions(commands: CommandGroup) -> None:
    approve = commands.add(
        "approve",
        "decide:handle_approve",
        "Show a question, ask the person at the terminal, and continue. Ends with 0 once the decision is recorded.",
        uses_servers=True,
    )
    approve.add_argument(
        "suspension",
        metavar="SUSPENSION",
        nargs="?",
        help="id of the question, or the beginning of it; default: all open questions, one by one",
    )
    approve.add_argument("--code", metavar="CODE", help="where there is no terminal: a code from `planwarden inbox`")
    approve.add_argument("--digest", metavar="DIGEST", help="with --code: digest of the question that you read")
    reject = commands.add(
        "reject", "decide:handle_reject", "Reject a question, and continue with the remaining steps.", uses_servers=True
    )
    reject.add_argument("suspension", metavar="SUSPENSION", help="id of the question, or the beginning of it")
    reject.add_argument("--reason", metavar="TEXT", help="reason that the model receives")
    cancel = commands.add(
        "cancel", "cancel:handle_cancel", "Stop an execution; what is completed stays done.", uses_servers=True
    )
    cancel.add_argument(
        "thread",
        metavar="THREAD",
        nargs="?",
        help="its threadId, or the beginning of one; without it, the command only lists what can be cancelled",
    )
    cancel.add_argument("--reason", metavar="TEXT", help="reason for the record")
    cancel.add_argument(
        "--yes", action="store_true", help="do not ask; a terminal asks when something has had its effect"
    )
    inbox = commands.add("inbox", "inbox:handle_inbox", "Open the inbox in the browser, with a one-time code.")
    inbox.add_argument(
        "--as", dest="name", metavar="NAME", help="name of the person who decides; default: the user name"
    )
    inbox.add_argument("--no-open", action="store_true", help="only print the link and the code")
    other = inbox.add_mutually_exclusive_group()
    other.add_argument("--end-sessions", action="store_true", help="log every browser out and void every code")
    other.add_argument(
        "--set-passphrase", action="store_true", help="ask for the passphrase of [inbox] and store its hash"
    )


def _add_tools(commands: CommandGroup) -> None:
    tools = commands.add("tools", "tools:handle_tools", "List the tools that plans may name.", uses_servers=True)
    tools.add_argument("query", nargs="*", metavar="QUERY", help="words to search for; best matches first")
    tools.add_argument("--limit", type=int, metavar="N", help="number of tools, at most 100")
    tools.add_argument("--cursor", help="continue after the page that printed this cursor")
    trust = commands.add(
        "trust",
        "trust:handle_trust",
        "Let tools of a downstream server run without asking, if the server says that they only read.",
        uses_servers=True,
    )
    trust.add_argument("server", metavar="SERVER", help="name of the server in planwarden.json")
    trust.add_argument(
        "tools",
        nargs="*",
        metavar="TOOL",
        help="only these tools, as planwarden or the server calls them; default: all",
    )
    trust.add_argument("--yes", action="store_true", help="do not ask before writing; needed without a terminal")
    login = commands.add(
        "login",
        "login:handle_login",
        "Log in to a downstream server, in the browser.",
        has_json=False,
        uses_servers=True,
    )
    login.add_argument("server", metavar="SERVER", help="name of the server in planwarden.json")
    login.add_argument("--no-open", action="store_true", help="only print the address")
    login.add_argument("--forget", action="store_true", help="instead delete the stored login")
    commands.add("doctor", "doctor:handle_doctor", "Check store, settings, model and tools.", uses_servers=True)
    notify = commands.add_group("notify", "test", "The channels that notify people of questions.")
    test = notify.add("test", "notify:handle_test", "Send a test notification now.")
    test.add_argument("--channel", metavar="NAME", help="send it only to this channel; default: to every channel")


def _add_approvals(commands: CommandGroup) -> None:
    grants = commands.add_group(
        "grant", "list|add|revoke", "Standing approvals: calls that a person allowed in advance."
    )
    listing = grants.add("list", "grants:handle_list", "List standing approvals.")
    listing.add_argument("--open", action="store_true", help="only those that a call can still use")
    add = grants.add("add", "grants:handle_add", "Allow calls of a tool in advance; asks at the terminal.")
    add.add_argument("tool", metavar="TOOL", help="name of the tool, as `planwarden tools` lists it")
    add.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="a value that the call must have")
    add.add_argument("--uses", type=int, required=True, metavar="N", help="number of calls, at most 1000")
    add.add_argument("--for", dest="duration", required=True, metavar="TIME", help="duration: 30m, 2h; at most 8h")
    add.add_argument("--owner", metavar="NAME", help="only for executions of this principal")
    revoke = grants.add("revoke", "grants:handle_revoke", "End a standing approval now.", has_json=False)
    revoke.add_argument("grant", metavar="GRANT", help="id of the grant, as `planwarden grant list` shows it")
    keys = commands.add_group(
        "key", "list|revoke", "Keys with which people sign approvals; people add them in the inbox."
    )
    keys.add("list", "keys:handle_list", "List the keys of all people.")
    revoke = keys.add("revoke", "keys:handle_revoke", "End a key now, such as a lost one.", has_json=False)
    revoke.add_argument("key", metavar="KEY", help="id of the key, or the beginning of it")
    audit = commands.add_group("audit", "show|verify|export", "The record of every question, decision and grant.")
    show = audit.add("show", "audit:handle_show", "Show the record, oldest first.")
    show.add_argument("--thread", metavar="THREAD", help="only the rows of this thread")
    show.add_argument("--limit", type=int, default=50, metavar="N", help="rows, at most 500; default %(default)s")
    show.add_argument("--cursor", help="continue after the page that printed this cursor")
    verify = audit.add("verify", "audit:handle_verify", "Compare the record with itself and with everything stored.")
    verify.add_argument("--head", metavar="HEAD", help="the head that an earlier verify or export printed")
    export = audit.add("export", "audit:handle_export", "Write the record as JSON lines.", has_json=False)
    export.add_argument("file", type=Path, metavar="FILE", help="a new file, or - for standard output")


def _add_store(commands: CommandGroup) -> None:
    prune = commands.add(
        "prune", "store:handle_prune", "Say which old finished executions it would delete, ask, and delete them."
    )
    prune.add_argument(
        "--days",
        type=int,
        metavar="N",
        help="delete those that have not changed for N days; default: [retention] days",
    )
    prune.add_argument("--yes", action="store_true", help="do not ask before deleting; needed without a terminal")
    backup = commands.add("backup", "store:handle_backup", "Copy the database while it is in use.")
    backup.add_argument("file", type=Path, metavar="FILE", help="a new file; an existing file is not overwritten")


def _add_tokens(commands: CommandGroup) -> None:
    tokens = commands.add_group("token", "add|list|revoke", "Bearer tokens for MCP over HTTP: make, list, revoke.")
    add = tokens.add("add", "tokens:handle_add", "Make a token and show it once.")
    add.add_argument("name", metavar="NAME", help="its principal, who owns everything that is done with the token")
    add.add_argument("--days", type=int, metavar="N", help="valid for N days; default: until it is revoked")
    add.add_argument(
        "--role",
        choices=("caller", "approver"),
        default="caller",
        help="caller: for MCP clients, the default; approver: for a person, and MCP refuses it",
    )
    tokens.add("list", "tokens:handle_list", "List tokens, without their secrets.")
    revoke = tokens.add("revoke", "tokens:handle_revoke", "End a token, or all tokens of a name.")
    revoke.add_argument("name", metavar="TOKEN", help="a name, for all of its tokens, or the id of one token")


def _add_config(commands: CommandGroup) -> None:
    config = commands.add_group("config", "print", "Configuration for MCP hosts.")
    block = config.add("print", "config:handle_print", "Print the block for a host, ready to paste.", has_json=False)
    block.add_argument("client", choices=sorted(CLIENTS), metavar="CLIENT", help=f"the host: {', '.join(CLIENTS)}")
    completion = commands.add(
        "completion",
        "completion:handle_completion",
        "Print a script that completes commands and options: `source <(planwarden completion bash)`, or "
        "`planwarden completion fish | source`.",
        has_json=False,
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"the shell: {', '.join(SHELLS)}")


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return port
