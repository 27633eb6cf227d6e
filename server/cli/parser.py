"""The command line as an argument parser: every command, its arguments and the name of its handler.

What serves, runs plans and decides stands here; what an operator needs besides stands in `operator_commands`.

A handler is named as `MODULE:FUNCTION` in `planwarden.server.cli.commands`. `planwarden.server.main` imports it when
its command runs, so that no command waits for the imports of another one.
"""

import argparse
from pathlib import Path

from planwarden.server.cli.command_parser import CommandGroup, Parser, ShowVersion
from planwarden.server.cli.exit_codes import EXIT_CODES
from planwarden.server.cli.operator_commands import (
    add_config,
    add_guard,
    add_schedules,
    add_store,
    add_tokens,
    add_tools,
)
from planwarden.server.settings.roles import CONCURRENCY, PROCESS_ROLES
from planwarden.server.views.status_words import FORMER, STATUSES

GRAPH_FORMS = ("text", "svg", "mermaid")


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
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show program's version number and exit")
    parser.set_defaults(handler="serve:handle_serve", json=False, http=False, accepts_trust=False, role="both")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    # Without a default, so that a command does not reset what was given before its name.
    options, server_options = _build_options(argparse.SUPPRESS), _build_server_options(argparse.SUPPRESS)
    commands = CommandGroup(subparsers, options, server_options)
    _add_serve(commands)
    _add_executions(commands)
    _add_decisions(commands)
    add_tools(commands)
    add_schedules(commands)
    _add_approvals(commands)
    add_store(commands)
    add_tokens(commands)
    add_guard(commands)
    add_config(commands)
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
        "--store",
        metavar="URL",
        help="postgresql://USER@HOST/DATABASE or sqlite:///FILE; default: PLANWARDEN_STORE, else planwarden.toml, else "
        "planwarden.db in the home",
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

    serve.add_argument(
        "--role",
        choices=PROCESS_ROLES,
        default="both",
        help="on a store that several processes share: front answers and runs nothing, worker is the command worker; "
        "default %(default)s",
    )
    worker = commands.add(
        "worker",
        "worker:handle_worker",
        "Run executions of a store that several processes share, without serving MCP.",
        has_json=False,
        uses_servers=True,
    )
    worker.add_argument(
        "--concurrency",
        type=_count,
        default=CONCURRENCY,
        metavar="N",
        help="executions at a time, at most 10000; default %(default)s",
    )


def _add_executions(commands: CommandGroup) -> None:
    _add_plans(commands)
    commands.add(
        "init", "init:handle_init", "Make the folder with settings, a tool and a plan that runs, where there are none."
    )
    demo = commands.add(
        "demo", "demo:handle_demo", "Show the main job: a plan, real tools, a killed process, a confirmation."
    )
    demo.add_argument("--yes", action="store_true", help="answer the confirmation with yes")
    run = commands.add("run", "run:handle_run", "Run a plan and ask its questions here.", uses_servers=True)
    run.add_argument(
        "plan", metavar="PLAN", help="name of a saved plan, or the file of any plan, or - for JSON on standard input"
    )
    _add_inputs(run)
    run.add_argument(
        "--yes",
        action="store_true",
        help="approve every call and confirmation except critical ones, and without a terminal except dangerous ones; "
        "forms are still asked",
    )
    run.add_argument(
        "--rehearse",
        action="store_true",
        help="only call what reads, and show what every other call would do and whom it would ask",
    )
    run.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key, 1 to 200 characters: run again with the same key, it goes on with the run that it began",
    )
    text = "Check a plan, and say whom it will ask and what only the run will know. Nothing runs."
    _add_check(commands, "check", "check:handle_check", text)
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
        "list", "questions:handle_list", "List open questions and the newest executions.", uses_servers=True
    )
    listing.add_argument(
        "--limit", type=int, default=20, metavar="N", help="number of lines, at most 100; default %(default)s"
    )
    listing.add_argument("--cursor", help="continue after the page that printed this cursor")
    listing.add_argument(
        "--executions",
        action="store_true",
        help="list executions, the newest activity first; the options below do so too",
    )
    listing.add_argument(
        "--search", metavar="WORDS", help="only those with each word in goal, saved plan, thread or id"
    )
    listing.add_argument("--state", type=_read_state, choices=tuple(STATUSES), help="only those in this state")
    listing.add_argument("--tool", metavar="TOOL", help="only those that name this tool")
    listing.add_argument("--host", metavar="NAME", help="only those that this program asked for, as it names itself")
    listing.add_argument("--plan", metavar="NAME", help="only the runs of this saved plan")
    show = commands.add("show", "show:handle_show", "Show a thread's newest execution.", uses_servers=True)
    show.add_argument(
        "thread",
        metavar="THREAD",
        nargs="?",
        help="a threadId, as `planwarden list` shows it, or the beginning of one; default: the newest",
    )
    show.add_argument("--observations", type=int, metavar="N", help="also show the events after event N; 0 for all")
    show.add_argument(
        "--at",
        type=int,
        metavar="SEQUENCE",
        help="show the execution as it was after this event; --observations 0 shows their numbers",
    )
    show.add_argument("--step", metavar="STEP", help="show this step alone; of a loop what its items came to, by pages")
    show.add_argument("--items-from", type=int, metavar="N", help="with --step: begin with this item, counted from 0")
    show.add_argument(
        "--limit", type=int, default=100, metavar="N", help="with --step: items, at most 1000; default %(default)s"
    )
    show.add_argument(
        "--graph",
        nargs="?",
        const=GRAPH_FORMS[0],
        choices=GRAPH_FORMS,
        metavar="FORM",
        help="instead write its plan as a graph with the state of each step: text, svg or mermaid; default: text",
    )
    show.add_argument(
        "--artifact", metavar="ID", help="instead write one large result, complete and unchanged, to standard output"
    )


def _read_state(word: str) -> str:
    return FORMER.get(word, word)


def _add_plans(commands: CommandGroup) -> None:
    plans = commands.add_group("plans", "show|check|graph|keep", "List saved plans.", handler="plans:handle_list")
    show = plans.add("show", "plans:handle_show", "Show a saved plan: what it takes, and its steps.")
    show.add_argument("name", metavar="NAME", help="name of the plan")
    _add_check(plans, "check", "check:handle_check", "Check a plan as `planwarden check` does. Nothing runs.")
    _add_check(plans, "graph", "check:handle_graph", "Print the graph of a plan as Mermaid text. Nothing runs.")
    keep = plans.add(
        "keep", "plans:handle_keep", "Make a saved plan of a finished run; values of its goal become inputs."
    )
    keep.add_argument("thread", metavar="THREAD", help="its threadId, or the beginning of one")
    keep.add_argument("name", metavar="NAME", help="name of the new plan: letters, digits, - and _, at most 64")


def _add_check(commands: CommandGroup, name: str, handler: str, text: str) -> None:
    check = commands.add(name, handler, text, uses_servers=True)
    check.add_argument(
        "plan", metavar="PLAN", help="name of a saved plan, or the file of any plan, or - for JSON on standard input"
    )
    _add_inputs(check)


def _add_inputs(
    parser: Parser, meaning: str = "an input; the value is JSON, or text where the plan takes text"
) -> None:
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE", help=meaning)
    parser.add_argument(
        "--inputs", metavar="FILE", help="file with inputs as one object, YAML or JSON; --input adds to it"
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
    retry = commands.add(
        "retry",
        "retry:handle_retry",
        "Go on from a thread's last execution without repeating what is completed.",
        uses_servers=True,
    )
    retry.add_argument("thread", metavar="THREAD", help="its threadId, or the beginning of one")
    retry.add_argument(
        "--from", dest="from_step", metavar="STEP", help="run this step again, and everything that depends on it"
    )
    retry.add_argument("--plan", metavar="PLAN", help="another plan for what is left, as for run")
    _add_inputs(retry, "another value for an input; the others stay as they were. Written as for run")
    retry.add_argument(
        "--key",
        metavar="KEY",
        help="idempotency key, 1 to 200 characters: again with the same key, it goes on with what that one started",
    )
    retry.add_argument("--yes", action="store_true", help="as for run")
    inbox = commands.add("inbox", "inbox:handle_inbox", "Open the inbox in the browser, with a one-time code.")
    inbox.add_argument(
        "--as", dest="name", metavar="NAME", help="name of the person who decides; default: the user name"
    )
    inbox.add_argument("--no-open", action="store_true", help="only print the link and the code")
    other = inbox.add_mutually_exclusive_group()
    for flag, meaning in (
        ("--end-sessions", "log every browser out and void every code"),
        ("--set-passphrase", "ask for the passphrase of [inbox] and store its hash"),
        ("--forget-passphrase", "delete the hash that --set-passphrase wrote into PostgreSQL"),
    ):
        inbox.note(other.add_argument(flag, action="store_true", help=meaning))


def _add_approvals(commands: CommandGroup) -> None:
    grants = commands.add_group(
        "grant", "list|add|revoke", "Standing approvals: calls that a person allowed in advance."
    )
    listing = grants.add("list", "grants:handle_list", "List standing approvals.")
    listing.add_argument("--open", action="store_true", help="only those that a call can still use")
    add = grants.add("add", "grants:handle_add", "Allow calls of a tool in advance; asks at the terminal.")
    add.add_argument("tool", metavar="TOOL", help="name of the tool, as `planwarden tools` lists it")
    add.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="a value that the call must have")
    text = "an argument that may have any value or be absent; an argument that is named nowhere must be absent"
    add.add_argument("--any", action="append", default=[], metavar="NAME", help=text)
    add.add_argument("--any-other", action="store_true", help="as --any for all other arguments of the tool")
    add.add_argument("--uses", type=int, metavar="N", help="number of calls, at most 1000")
    add.add_argument("--plan", metavar="NAME", help="only for runs of this saved plan, as it is now")
    add.add_argument("--step", metavar="ID", help="with --plan: only for calls that this step of it writes")
    text = "with --plan: number of calls on each calendar day in UTC, at most 1000"
    add.add_argument("--uses-per-day", type=int, metavar="N", help=text)
    text = "duration: 30m, 2h, 90d; at most 8h, or 90d with --plan"
    add.add_argument("--for", dest="duration", required=True, metavar="TIME", help=text)
    add.add_argument("--owner", metavar="NAME", help="only for executions of this principal")
    revoke = grants.add("revoke", "grants:handle_revoke", "End a standing approval now.", has_json=False)
    revoke.add_argument("grant", metavar="GRANT", help="id of the grant, or the beginning of it")
    once = commands.add_group("once", "list|forget", "Calls that happen once per business key, by [tools] once.")
    listing = once.add("list", "once:handle_list", "List the newest calls that keep their key, 200 at most.")
    listing.add_argument("--tool", metavar="TOOL", help="only calls of this tool")
    forget = once.add("forget", "once:handle_forget", "Let a call with a key happen again; asks at the terminal.")
    forget.add_argument("tool", metavar="TOOL", help="name of the tool")
    text = "a value of the key, by its pointer; JSON, or text where the call had text"
    forget.add_argument("--key", action="append", required=True, metavar="NAME=VALUE", help=text)
    _add_rules(commands)
    keys = commands.add_group(
        "key", "list|revoke|new-secret", "Keys with which people sign approvals; people add them in the inbox."
    )
    keys.add("list", "keys:handle_list", "List the keys of all people.")
    revoke = keys.add("revoke", "keys:handle_revoke", "End a key now, such as a lost one.", has_json=False)
    revoke.add_argument("key", metavar="KEY", help="id of the key, or the beginning of it")
    text = "Print a fresh key for PLANWARDEN_SECRET_KEY, which seals the secrets in PostgreSQL, and nothing else."
    keys.add("new-secret", "keys:handle_new_secret", text, has_json=False)
    audit = commands.add_group("audit", "show|verify|export", "The record of every question, decision and grant.")
    show = audit.add("show", "audit:handle_show", "Show the record, oldest first.")
    show.add_argument("--thread", metavar="THREAD", help="only the rows of this thread")
    show.add_argument("--limit", type=int, default=50, metavar="N", help="rows, at most 500; default %(default)s")
    show.add_argument("--cursor", help="continue after the page that printed this cursor")
    verify = audit.add("verify", "audit:handle_verify", "Compare the record with itself and with everything stored.")
    verify.add_argument("--head", metavar="HEAD", help="the head that an earlier verify or export printed")
    export = audit.add("export", "audit:handle_export", "Write the record as JSON lines.", has_json=False)
    export.add_argument("file", type=Path, metavar="FILE", help="a new file, or - for standard output")


def _add_rules(commands: CommandGroup) -> None:
    rules = commands.add_group("rules", "check|replay", "List the rules on arguments.", handler="rules:handle_list")
    check = rules.add("check", "rules:handle_check", "Say which rule decides about a call, and why. Nothing runs.")
    check.add_argument("tool", metavar="TOOL", help="name of the tool, or HOST/TOOL for a tool of a host")
    check.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="as for call")
    check.add_argument("--json-args", metavar="JSON", help="as for call")
    text = "Say what the rules of now would have done with the calls of the log. Nothing runs."
    replay = rules.add("replay", "rules:handle_replay", text)
    replay.add_argument(
        "--days", type=_count, default=30, metavar="N", help="calls of the last N days; default %(default)s"
    )


def _count(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= count <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return count


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return port
