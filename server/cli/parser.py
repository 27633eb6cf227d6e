"""The command line as an argument parser: every command, and the module that has its arguments and runs it."""

import argparse
from importlib import import_module

from planwarden.server.cli.command_parser import CommandParser, Parser, ShowVersion, add_options, add_server_options
from planwarden.server.cli.output import EXIT_CODES

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("serve", "serve:add_serve", "Serve MCP over standard input and output, or over HTTP."),
    (
        "worker",
        "worker:add_worker",
        "Run executions of a store that several processes share, without serving MCP.",
    ),
    ("plans", "plans:add_plans", "List saved plans."),
    (
        "init",
        "init:add_init",
        "Make the folder with settings, a tool and a plan that runs, where there are none.",
    ),
    ("demo", "demo:add_demo", "Show the main job: a plan, real tools, a killed process, a confirmation."),
    ("run", "run:add_run", "Run a plan and ask its questions here."),
    (
        "check",
        "check:add_check",
        "Check a plan, and say whom it will ask and what only the run will know. Nothing runs.",
    ),
    ("run-goal", "run:add_run_goal", "Make a plan for a goal with the configured model, and run it."),
    ("call", "call:add_call", "Call one tool, with the checks and the record of a plan."),
    ("list", "questions:add_list", "List open questions and the newest executions."),
    ("show", "show:add_show", "Show a thread's newest execution."),
    (
        "approve",
        "decide:add_approve",
        "Show a question, ask the person at the terminal, and continue. Ends with 0 once the decision is recorded.",
    ),
    ("reject", "decide:add_reject", "Reject a question, and continue with the remaining steps."),
    ("cancel", "cancel:add_cancel", "Stop an execution; what is completed stays done."),
    ("retry", "retry:add_retry", "Go on from a thread's last execution without repeating what is completed."),
    ("inbox", "inbox:add_inbox", "Open the inbox in the browser, with a one-time code."),
    ("tools", "tools:add_tools", "List the tools that plans may name."),
    (
        "trust",
        "trust:add_trust",
        "Let tools of a downstream server run without asking, if the server says that they only read.",
    ),
    ("login", "login:add_login", "Log in to a downstream server, in the browser."),
    ("doctor", "doctor:add_doctor", "Check store, settings, model and tools."),
    ("notify", "notify:add_notify", "The channels that notify people of questions."),
    (
        "schedule",
        "schedules:add_schedule_commands",
        "Schedules, on which servers and workers start saved plans.",
    ),
    ("hook", "hooks:add_hook", "Requests of other programs that start saved plans: [hooks]."),
    ("grant", "grants:add_grant_commands", "Standing approvals: calls that a person allowed in advance."),
    ("once", "business_keys:add_once", "Calls that happen once per business key, by [tools] once."),
    ("rules", "rules:add_rules", "List the rules on arguments."),
    ("promises", "promises:add_promises", "List what hosts must have called before they are done."),
    ("receipt", "promises:add_receipt", "Say what a host's session did, promised and proved."),
    ("key", "keys:add_key_commands", "Keys with which people sign approvals; people add them in the inbox."),
    ("audit", "audit:add_audit", "The record of every question, decision and grant."),
    (
        "prune",
        "store:add_prune",
        "Say which old finished executions it would delete, ask, and delete them.",
    ),
    ("backup", "store:add_backup", "Copy the database while it is in use."),
    (
        "move",
        "move:add_move",
        "Move everything to another store, read it back, and leave this one unusable.",
    ),
    ("token", "tokens:add_token_commands", "Bearer tokens for MCP over HTTP: make, list, revoke."),
    ("guard", "guard:add_guard", "Judge and ask about what a host is about to do itself."),
    ("gate", "gate:add_gate", "Serve a server that you have, with its own tools, and a person before what matters."),
    ("config", "config:add_config", "Configuration for MCP hosts."),
    ("service", "service:add_service", "Files that keep a server running."),
    (
        "completion",
        "completion:add_completion",
        (
            'Print a script that completes commands and options: `eval "$(planwarden completion bash)"`, the same with '
            "`zsh`, or `planwarden completion fish | source`."
        ),
    ),
)
"""Each command with `MODULE:FUNCTION` in `planwarden.server.cli.commands`, which adds its arguments, and what it does.

The module is imported when its command is used, so that no command waits for the imports of another one.
"""


def build_parser(*, is_whole: bool = False) -> Parser:
    """Return the parser of the command line; one that `is_whole` knows the arguments of every command at once."""
    parser = Parser(
        prog="planwarden",
        description="Runs plans durably, proves every promised tool call, and waits for a person where it matters.\n"
        "Without a command it serves MCP over standard input and output.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser, None)
    add_server_options(parser, None)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show program's version number and exit")
    parser.set_defaults(
        handler=_serve, json=False, http=False, accepts_trust=False, role="both", needs_home=False, speaks_protocol=True
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    for name, source, text in COMMANDS:
        command: CommandParser = subparsers.add_parser(
            name, source=source, help=text, description=text, allow_abbrev=False
        )
        if is_whole:
            command.load()
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    return import_module("planwarden.server.cli.commands.serve").handle_serve(arguments)
