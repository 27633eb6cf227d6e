"""From parsed arguments to work done and an exit code. What only one command needs is imported when it is run."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.home import DONE, FAILED, CliHome, exit_code
from planwarden.server.cli.hosts import CLIENTS, launch
from planwarden.server.settings.configuration import load_settings
from planwarden.server.views.encoding import to_json
from planwarden.server.views.execution import build_execution_view
from planwarden.server.views.facts import escape_text

# A server does not wait for what only terminals need.
if TYPE_CHECKING:
    from planwarden.server.cli.commands.run import CliSession
    from planwarden.server.cli.terminal.terminal import Terminal

PATIENCE_S = 60.0
"""A command that answers one question does not wait longer for the clock."""

TRUST_BANNER = """\
**********************************************************************************
planwarden: [approvals] trust_caller is on: whatever calls this server approves its
own actions, and nobody is asked. Each such decision is recorded as `claimed`.
**********************************************************************************"""


def serve(arguments: Namespace) -> int:
    settings = load_settings(home=_home(arguments), model=_model(arguments), mcp_config=_mcp_config(arguments))
    if settings.policy.trust_caller:
        print(TRUST_BANNER, file=sys.stderr)
    if arguments.http:
        from planwarden.server.transports.http import serve_http

        async def over_http() -> None:
            await serve_http(
                settings,
                host=arguments.host,
                port=arguments.port,
                accepts_trust=arguments.accepts_trust,
                started=_say_where,
            )

        anyio.run(over_http)
        return DONE
    if sys.stdin.isatty():
        text = "planwarden speaks MCP here and waits for a client. Try `planwarden demo`, or `planwarden --help`."
        print(text, file=sys.stderr)
    from planwarden.server.transports.stdio import serve_stdio

    anyio.run(serve_stdio, settings)
    return DONE


def _say_where(url: str) -> None:
    where = url.removesuffix("/mcp")
    print(f"planwarden listens on {url}; its inbox is {where}/inbox, `planwarden inbox` lets you in", file=sys.stderr)


def demo(arguments: Namespace) -> int:
    from planwarden.server.cli.demo.demonstration import demonstrate

    home, execution = demonstrate(_terminal(arguments), _home(arguments), says_yes=arguments.yes)
    if arguments.json:
        print_json(to_json(build_execution_view(execution, home.tools)))
    return exit_code(execution)


def run(arguments: Namespace) -> int:
    from planwarden.server.cli.commands.run import read_plan, run_plan

    plan = read_plan(arguments.plan)
    desk = _desk(arguments, says_yes=arguments.yes)
    return _concluded(arguments, desk, run_plan(desk, plan))


def run_goal(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import run as commands_run

    desk = _desk(arguments, says_yes=arguments.yes)
    return _concluded(arguments, desk, commands_run.run_goal(desk, arguments.goal))


def call(arguments: Namespace) -> int:
    from planwarden.server.cli.commands.call import call_tool, draw_result, read_arguments

    given = read_arguments(arguments.arg, arguments.json_args)
    desk = _desk(arguments, says_yes=arguments.yes)
    execution = call_tool(desk, arguments.tool, given)
    if not arguments.json:
        draw_result(desk.terminal, execution)
    return _concluded(arguments, desk, execution)


def approve(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import run as commands_run

    desk = _desk(arguments, patience_s=PATIENCE_S)
    if arguments.code is None and arguments.digest is None:
        return _concluded(arguments, desk, commands_run.approve(desk, arguments.suspension))
    if arguments.code is None or arguments.digest is None:
        raise UsageError("--code and --digest go together: who approves, and what")
    from planwarden.server.cli.commands.code import approve_with_code

    execution = approve_with_code(desk, arguments.suspension, arguments.code, arguments.digest)
    return _concluded(arguments, desk, execution)


def reject(arguments: Namespace) -> int:
    """A rejected execution is what was asked for; anything else that is not good is still told."""
    from planwarden.server.cli.commands import run as commands_run

    desk = _desk(arguments, patience_s=PATIENCE_S)
    execution = commands_run.reject(desk, arguments.suspension, arguments.reason)
    code = _concluded(arguments, desk, execution)
    return DONE if execution.status == "rejected" else code


def list_(arguments: Namespace) -> int:
    from planwarden.server.cli.commands.show import list_questions

    terminal = None if arguments.json else _terminal(arguments)
    page = list_questions(_load(arguments), terminal, limit=arguments.limit, cursor=arguments.cursor)
    if arguments.json:
        print_json(to_json(page))
    return DONE


def show(arguments: Namespace) -> int:
    from planwarden.server.cli.commands.show import read_artifact, show_thread

    if arguments.artifact is not None:
        if arguments.json or arguments.observations is not None:
            raise UsageError("--artifact writes the artifact as it is; leave --json and --observations out")
        home, is_terminal = _load(arguments), sys.stdout.isatty()
        sys.stdout.buffer.write(read_artifact(home, arguments.thread, arguments.artifact, for_eyes=is_terminal))
        return DONE
    terminal = None if arguments.json else _terminal(arguments)
    view = show_thread(_load(arguments), terminal, arguments.thread, observations_after=arguments.observations)
    if arguments.json:
        print_json(to_json(view))
    return DONE


def inbox(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import inbox as inbox_command

    if arguments.end_sessions:
        ended = inbox_command.end_sessions(_load(arguments))
        if arguments.json:
            print_json({"sessionsEnded": ended})
        else:
            _terminal(arguments).say(inbox_command.ended_text(ended))
        return DONE
    if arguments.json:
        raise UsageError("--json goes with --end-sessions only; a code is never part of a document")
    if arguments.set_passphrase:
        path = inbox_command.set_passphrase(_load(arguments), _terminal(arguments))
        _terminal(arguments).say(f"{path}: written; it is asked for from now on")
        return DONE
    inbox_command.open_inbox(_load(arguments), _terminal(arguments), arguments.name, opens=not arguments.no_open)
    return DONE


def tools(arguments: Namespace) -> int:
    from planwarden.server.cli.commands.tools import draw_servers, draw_tools, list_tools, servers_json

    query = " ".join(arguments.query) or None
    page, servers = list_tools(_load(arguments), query, limit=arguments.limit, cursor=arguments.cursor)
    if arguments.json:
        print_json({**to_json(page), **({"servers": servers_json(servers)} if servers else {})})
    else:
        draw_tools(_terminal(arguments), page)
        draw_servers(_terminal(arguments), servers)
    return DONE


def login(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import login as commands_login

    home, terminal, name = _load(arguments), _terminal(arguments), arguments.server
    if arguments.forget:
        is_gone = commands_login.forget(home, name)
        terminal.say("The login is deleted here." if is_gone else "There was no login.")
    elif commands_login.login(home, terminal, name, opens=not arguments.no_open):
        terminal.say(f"Logged in; plans can use server {escape_text(name)} now.")
    else:
        terminal.say(f"Server {escape_text(name)} answers without a login; nothing was stored.")
    return DONE


def doctor(arguments: Namespace) -> int:
    from planwarden.server.cli.commands.doctor import draw, examine

    report = examine(_home(arguments), _model(arguments), _mcp_config(arguments))
    if arguments.json:
        print_json(report.to_json())
    else:
        draw(_terminal(arguments), report)
    return DONE if report.is_healthy else FAILED


def notify_test(arguments: Namespace) -> int:
    from planwarden.server.cli.commands.notify import draw_tested, send_test

    found = send_test(load_settings(home=_home(arguments)), arguments.channel)
    if arguments.json:
        print_json({"channels": [tested.to_json() for tested in found]})
    else:
        draw_tested(_terminal(arguments), found)
    return DONE if all(tested.is_delivered for tested in found) else FAILED


def grant_list(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import grants as commands_grants

    found = commands_grants.list_grants(_load(arguments), only_open=arguments.open)
    if arguments.json:
        print_json({"grants": [to_json(grant) for grant in found]})
    else:
        commands_grants.draw_grants(_terminal(arguments), found)
    return DONE


def grant_add(arguments: Namespace) -> int:
    from planwarden.server.api.grants import GrantRequest
    from planwarden.server.cli.commands import grants as commands_grants

    request = GrantRequest(
        tool_name=arguments.tool,
        arguments=commands_grants.arguments_of(arguments.arg),
        uses=arguments.uses,
        expires_in_s=commands_grants.seconds_of(arguments.duration),
        owner=arguments.owner,
    )
    terminal = _terminal(arguments)
    made = commands_grants.add_grant(_load(arguments), terminal, request)
    if made is None:
        terminal.say("Nothing was allowed.")
        return FAILED
    if arguments.json:
        print_json(to_json(made))
    else:
        commands_grants.draw_grants(terminal, (made,))
    return DONE


def grant_revoke(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import grants as commands_grants

    commands_grants.revoke_grant(_load(arguments), arguments.grant)
    _terminal(arguments).say("The grant is over.")
    return DONE


def key_list(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import keys as commands_keys

    found = commands_keys.list_keys(_load(arguments))
    if arguments.json:
        print_json({"keys": [to_json(key) for key in found]})
    else:
        commands_keys.draw_keys(_terminal(arguments), found)
    return DONE


def key_revoke(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import keys as commands_keys

    key = commands_keys.revoke_key(_load(arguments), arguments.key)
    _terminal(arguments).say(f"Key {key.key_id} of {escape_text(key.principal)} is revoked.")
    return DONE


def audit_show(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import audit as commands_audit

    settings = load_settings(home=_home(arguments))
    page = commands_audit.show(settings, thread_id=arguments.thread, limit=arguments.limit, cursor=arguments.cursor)
    if arguments.json:
        print_json(to_json(page))
    else:
        commands_audit.draw_rows(_terminal(arguments), page)
    return DONE


def audit_verify(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import audit as commands_audit

    verdict = commands_audit.verify(load_settings(home=_home(arguments)), arguments.head)
    if arguments.json:
        print_json({"isWhole": verdict.is_whole, **to_json(verdict)})
    else:
        commands_audit.draw_verdict(_terminal(arguments), verdict)
    return DONE if verdict.is_whole else FAILED


def audit_export(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import audit as commands_audit
    from planwarden.server.cli.terminal.terminal import Terminal

    settings = load_settings(home=_home(arguments))
    if str(arguments.file) == "-":
        verdict = commands_audit.export(settings, sys.stdout.write)
    else:
        verdict = commands_audit.export_to(settings, arguments.file.expanduser().absolute())
    commands_audit.draw_verdict(Terminal(sys.stderr), verdict)
    return DONE if verdict.is_whole else FAILED


def prune(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import store as commands_store

    pruned = commands_store.prune(load_settings(home=_home(arguments)), arguments.days)
    if arguments.json:
        print_json({"pruned": pruned.executions, "days": pruned.days})
    else:
        word = "execution" if pruned.executions == 1 else "executions"
        _terminal(arguments).say(f"{pruned.executions} finished {word} older than {pruned.days} days deleted")
    return DONE


def backup(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import store as commands_store

    target: Path = arguments.file.expanduser().absolute()
    size_bytes = commands_store.backup(load_settings(home=_home(arguments)), target)
    if arguments.json:
        print_json({"file": str(target), "sizeBytes": size_bytes})
    else:
        _terminal(arguments).say(f"{target}: {size_bytes} bytes")
    return DONE


def token_add(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import tokens as commands_tokens

    settings = load_settings(home=_home(arguments))
    token, row = commands_tokens.add(settings, arguments.name, role=arguments.role, days=arguments.days)
    if arguments.json:
        print_json({**commands_tokens.row_json(row, row.created_at), "token": token})
        return DONE
    print(f"token {row.token_id} of {row.principal}; it is shown this once and stored nowhere:", file=sys.stderr)
    print(token)
    return DONE


def token_list(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import tokens as commands_tokens

    rows, now = commands_tokens.listed(load_settings(home=_home(arguments)))
    if arguments.json:
        print_json({"tokens": [commands_tokens.row_json(row, now) for row in rows]})
        return DONE
    terminal = _terminal(arguments)
    for row in rows:
        terminal.say(commands_tokens.row_line(row, now))
    if not rows:
        terminal.say("No tokens; `planwarden token add NAME` makes one.")
    return DONE


def token_revoke(arguments: Namespace) -> int:
    from planwarden.server.cli.commands import tokens as commands_tokens

    rows, now = commands_tokens.revoke(load_settings(home=_home(arguments)), arguments.name)
    if arguments.json:
        print_json({"revoked": [commands_tokens.row_json(row, now) for row in rows]})
    else:
        _terminal(arguments).say(f"revoked: {', '.join(row.token_id for row in rows)}")
    return DONE


def config(arguments: Namespace) -> int:
    client = CLIENTS[arguments.client]
    env: dict[str, str] = {}
    if (home := _home(arguments)) is not None:
        env["PLANWARDEN_HOME"] = str(home.expanduser().absolute())
    if (model := _model(arguments)) is not None:
        kind, _, file = model.partition(":")
        env["PLANWARDEN_MODEL"] = f"scripted:{Path(file).expanduser().absolute()}" if kind == "scripted" else model
    # The place goes to the other stream, so that the document can be redirected into a file.
    print(f"into {client.where}:", file=sys.stderr)
    print(client.write(launch(env)))
    return DONE


def print_json(document: Mapping[str, JsonValue]) -> None:
    """The one document of a command with --json."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _concluded(arguments: Namespace, desk: "CliSession", execution: ExecutionState) -> int:
    from planwarden.server.cli.commands.run import conclude

    conclude(desk, execution)
    if arguments.json:
        print_json(to_json(build_execution_view(execution, desk.home.tools)))
    return exit_code(execution)


def _desk(arguments: Namespace, *, says_yes: bool = False, patience_s: float = math.inf) -> "CliSession":
    from planwarden.server.cli.commands.run import CliSession

    return CliSession(_load(arguments), _terminal(arguments), says_yes=says_yes, patience_s=patience_s)


def _load(arguments: Namespace) -> CliHome:
    return CliHome.load(_home(arguments), _model(arguments), mcp_config=_mcp_config(arguments))


def _terminal(arguments: Namespace) -> "Terminal":
    """Where people read; with --json standard output belongs to the document."""
    from planwarden.server.cli.terminal.terminal import Terminal

    return Terminal(sys.stderr if arguments.json else sys.stdout)


def _home(arguments: Namespace) -> Path | None:
    return getattr(arguments, "home", None)


def _model(arguments: Namespace) -> str | None:
    return getattr(arguments, "model", None)


def _mcp_config(arguments: Namespace) -> Path | None:
    return getattr(arguments, "mcp_config", None)
