"""The command line: every command and its arguments."""

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from planwarden.server.cli import handlers
from planwarden.server.cli.home import USAGE
from planwarden.server.cli.hosts import CLIENTS

if TYPE_CHECKING:
    # The class is private in argparse, and generic only for type checkers.
    Subparsers = argparse._SubParsersAction["Parser"]  # pyright: ignore[reportPrivateUsage]

EXIT_CODES = """\
exit codes:
  0    done
  1    it failed, was rejected, or could not be done
  2    the command cannot be run like that
  3    it waits for an answer that nobody gave here
  130  interrupted; what was begun can go on
"""

_WITH_TOOLS = frozenset(
    {"serve", "run", "run-goal", "call", "list", "show", "approve", "reject", "tools", "login", "doctor"}
)
_JSON = "print one JSON document on standard output"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"planwarden: {message}; see `{self.prog} --help`\n")


def parser() -> Parser:
    """The whole command line."""
    shared = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument(
        "--home",
        type=Path,
        metavar="DIR",
        help="folder of database and settings; default: PLANWARDEN_HOME, else the platform's data folder",
    )
    shared.add_argument(
        "--model",
        help="caller, scripted:FILE, or a provider's, such as anthropic:NAME; "
        "default: PLANWARDEN_MODEL, else planwarden.toml, else caller",
    )
    servers = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    servers.add_argument(
        "--mcp-config", type=Path, metavar="FILE", help="downstream servers; default: planwarden.json in the home"
    )
    top = Parser(
        prog="planwarden",
        description="Runs plans durably, proves every promised tool call, and waits for a person where it matters.\n"
        "Without a command it serves MCP over standard input and output.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[shared, servers],
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"planwarden {version('planwarden')}")
    top.set_defaults(run=handlers.serve, http=False, accepts_trust=False)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, *, has_json: bool = True) -> Parser:
        parents = [shared, servers] if name in _WITH_TOOLS else [shared]
        made = commands.add_parser(name, help=text, description=text, parents=parents, allow_abbrev=False)
        made.set_defaults(run=run)
        if has_json:
            made.add_argument("--json", action="store_true", help=_JSON)
        return made

    serve = command("serve", handlers.serve, "Serve MCP over standard input and output, or over HTTP.", has_json=False)
    serve.add_argument("--http", action="store_true", help="Streamable HTTP at /mcp instead")
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; another than this machine's needs tokens and allowed_hosts; default %(default)s",
    )
    serve.add_argument("--port", type=_port, default=8765, help="port to listen on; default %(default)s")
    serve.add_argument(
        "--i-know-the-caller-can-approve-itself",
        dest="accepts_trust",
        action="store_true",
        help="let [approvals] trust_caller hold on an address that other machines can reach",
    )
    demo = command("demo", handlers.demo, "Show the main job: a plan, real tools, a killed process, a confirmation.")
    demo.add_argument("--yes", action="store_true", help="answer the confirmation with yes")
    run = command("run", handlers.run, "Run a plan and ask its questions here.")
    run.add_argument("plan", metavar="PLAN.json", help="the plan, or - for standard input")
    run.add_argument(
        "--yes",
        action="store_true",
        help="approve every call and confirmation but critical ones; forms are still asked",
    )
    goal = command("run-goal", handlers.run_goal, "Plan for a goal with the configured model, and run it.")
    goal.add_argument("goal", metavar="GOAL", help="what is wanted, in one argument")
    goal.add_argument("--yes", action="store_true", help="as for run")
    call = command("call", handlers.call, "Call one tool, gated and recorded as in a plan.")
    call.add_argument("tool", metavar="TOOL", help="its name, as `planwarden tools` lists it")
    call.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument; JSON, unless the tool takes text there",
    )
    call.add_argument("--json-args", metavar="JSON", help="all arguments as one JSON object; --arg adds to it")
    call.add_argument("--yes", action="store_true", help="as for run")
    listed = command("list", handlers.list_, "List open questions and the newest executions.")
    listed.add_argument(
        "--limit", type=int, default=20, metavar="N", help="questions, at most 100; default %(default)s"
    )
    listed.add_argument("--cursor", help="where the last page ended")
    show = command("show", handlers.show, "Show a thread's newest execution.")
    show.add_argument("thread", metavar="THREAD", help="a threadId, as `planwarden list` shows it")
    show.add_argument("--observations", type=int, metavar="N", help="also what happened after event N; 0 for all")
    show.add_argument(
        "--artifact", metavar="ID", help="instead write one large result, whole and as it is, to standard output"
    )
    approve = command("approve", handlers.approve, "Show a question, ask the person at the terminal, and go on.")
    approve.add_argument("suspension", metavar="SUSPENSION", help="the id of the question")
    approve.add_argument(
        "--code", metavar="CODE", help="where there is no terminal: one that `planwarden inbox` showed"
    )
    approve.add_argument("--digest", metavar="DIGEST", help="with --code: of the question as it was read")
    reject = command("reject", handlers.reject, "Reject a question and go on with what is left to do.")
    reject.add_argument("suspension", metavar="SUSPENSION", help="the id of the question")
    reject.add_argument("--reason", metavar="TEXT", help="told to the model")
    _inbox(command("inbox", handlers.inbox, "Open the inbox in the browser, with a one-time code."))
    tools = command("tools", handlers.tools, "List the tools that plans may name.")
    tools.add_argument("query", nargs="*", metavar="QUERY", help="words to look for; best matches first")
    tools.add_argument("--limit", type=int, metavar="N", help="tools, at most 100")
    tools.add_argument("--cursor", help="where the last page ended")
    login = command("login", handlers.login, "Log in to a downstream server, in the browser.", has_json=False)
    login.add_argument("server", metavar="SERVER", help="its name in planwarden.json")
    login.add_argument("--no-open", action="store_true", help="only print the address")
    login.add_argument("--forget", action="store_true", help="instead delete what an earlier login left here")
    login.set_defaults(json=False)
    command("doctor", handlers.doctor, "Check store, settings, model and tools.")
    _notify(commands, shared)
    _grants(commands, shared)
    _keys(commands, shared)
    _audit(commands, shared)
    prune = command("prune", handlers.prune, "Delete old finished executions.")
    prune.add_argument("--days", type=int, metavar="N", help="unchanged for so many days; default [retention] days")
    backup = command("backup", handlers.backup, "Copy the database while it is in use.")
    backup.add_argument("file", type=Path, metavar="FILE", help="a new file; an existing one is not overwritten")
    text = "Bearer tokens for MCP over HTTP: make, list, revoke."
    _add_tokens(commands.add_parser("token", help=text, description=text), shared)
    config = commands.add_parser(
        "config", help="Configuration for MCP hosts.", description="Configuration for MCP hosts."
    )
    printed = config.add_subparsers(metavar="print", required=True, parser_class=Parser)
    client = _verb(printed, "print", "Print the block for a host, ready to paste.", shared)
    client.add_argument("client", choices=sorted(CLIENTS), metavar="CLIENT", help=f"the host: {', '.join(CLIENTS)}")
    client.set_defaults(run=handlers.config)
    return top


def _verb(group: "Subparsers", name: str, text: str, shared: Parser) -> Parser:
    return group.add_parser(name, help=text, description=text, parents=[shared], allow_abbrev=False)


def _add_tokens(tokens: Parser, shared: Parser) -> None:
    verbs = tokens.add_subparsers(metavar="add|list|revoke", required=True, parser_class=Parser)

    def verb(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Parser:
        made = _verb(verbs, name, text, shared)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help=_JSON)
        return made

    add = verb("add", handlers.token_add, "Make a token and show it, this once.")
    add.add_argument("name", metavar="NAME", help="whose it is; everything done with it belongs to that name")
    add.add_argument("--days", type=int, metavar="N", help="valid for so many days; default: until revoked")
    add.add_argument(
        "--role",
        choices=("caller", "approver"),
        default="caller",
        help="caller: MCP clients, the default; approver: a person's, refused by MCP",
    )
    verb("list", handlers.token_list, "List tokens, without their secrets.")
    revoke = verb("revoke", handlers.token_revoke, "End a token, or all tokens of a name.")
    revoke.add_argument("name", metavar="TOKEN", help="a name, for all of its tokens, or the id of one")


def _inbox(inbox: Parser) -> None:
    inbox.add_argument("--as", dest="name", metavar="NAME", help="who decides; default the name of the user")
    inbox.add_argument("--no-open", action="store_true", help="only print the link and the code")
    other = inbox.add_mutually_exclusive_group()
    other.add_argument("--end-sessions", action="store_true", help="log every browser out and void every code")
    other.add_argument(
        "--set-passphrase", action="store_true", help="ask for the passphrase of [inbox] and keep its hash"
    )


def _notify(commands: "Subparsers", shared: Parser) -> None:
    text = "The channels that tell people of questions."
    group = commands.add_parser("notify", help=text, description=text).add_subparsers(
        metavar="test", required=True, parser_class=Parser
    )
    test = _verb(group, "test", "Send a test notification now.", shared)
    test.add_argument("--channel", metavar="NAME", help="only to this channel; default: to every one")
    test.add_argument("--json", action="store_true", help=_JSON)
    test.set_defaults(run=handlers.notify_test)


def _grants(commands: "Subparsers", shared: Parser) -> None:
    text = "Standing approvals: calls that a person allowed beforehand."
    group = commands.add_parser("grant", help=text, description=text).add_subparsers(
        metavar="list|add|revoke", required=True, parser_class=Parser
    )
    listed = _verb(group, "list", "List standing approvals.", shared)
    listed.add_argument("--open", action="store_true", help="only those that a call may still use")
    listed.add_argument("--json", action="store_true", help=_JSON)
    listed.set_defaults(run=handlers.grant_list)
    add = _verb(group, "add", "Allow calls of a tool beforehand; asks at the terminal.", shared)
    add.add_argument("tool", metavar="TOOL", help="its name, as `planwarden tools` lists it")
    add.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="a value that the call must have")
    add.add_argument("--uses", type=int, required=True, metavar="N", help="how many calls, at most 1000")
    add.add_argument("--for", dest="duration", required=True, metavar="TIME", help="how long: 30m, 2h; at most 8h")
    add.add_argument("--owner", metavar="NAME", help="only for executions of this principal")
    add.add_argument("--json", action="store_true", help=_JSON)
    add.set_defaults(run=handlers.grant_add)
    revoke = _verb(group, "revoke", "End a standing approval now.", shared)
    revoke.add_argument("grant", metavar="GRANT", help="its id, as `planwarden grant list` shows it")
    revoke.set_defaults(run=handlers.grant_revoke, json=False)


def _keys(commands: "Subparsers", shared: Parser) -> None:
    text = "Keys with which people sign approvals; they are added in the inbox."
    group = commands.add_parser("key", help=text, description=text).add_subparsers(
        metavar="list|revoke", required=True, parser_class=Parser
    )
    listed = _verb(group, "list", "List everybody's keys.", shared)
    listed.add_argument("--json", action="store_true", help=_JSON)
    listed.set_defaults(run=handlers.key_list)
    revoke = _verb(group, "revoke", "End a key now, such as a lost one.", shared)
    revoke.add_argument("key", metavar="KEY", help="its id, or the beginning of it")
    revoke.set_defaults(run=handlers.key_revoke, json=False)


def _audit(commands: "Subparsers", shared: Parser) -> None:
    text = "The record of every question, decision and grant."
    group = commands.add_parser("audit", help=text, description=text).add_subparsers(
        metavar="show|verify|export", required=True, parser_class=Parser
    )
    show = _verb(group, "show", "Show the record, oldest first.", shared)
    show.add_argument("--thread", metavar="THREAD", help="only what belongs to this thread")
    show.add_argument("--limit", type=int, default=50, metavar="N", help="rows, at most 500; default %(default)s")
    show.add_argument("--cursor", help="where the last page ended")
    show.add_argument("--json", action="store_true", help=_JSON)
    show.set_defaults(run=handlers.audit_show)
    verify = _verb(group, "verify", "Prove that the record is whole.", shared)
    verify.add_argument("--head", metavar="HEAD", help="the head that an earlier verify or export printed")
    verify.add_argument("--json", action="store_true", help=_JSON)
    verify.set_defaults(run=handlers.audit_verify)
    export = _verb(group, "export", "Write the record as JSON lines.", shared)
    export.add_argument("file", type=Path, metavar="FILE", help="a new file, or - for standard output")
    export.set_defaults(run=handlers.audit_export, json=False)


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return port
