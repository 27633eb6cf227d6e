"""`planwarden schedule`, and what `doctor` says of schedules and hooks."""

import json

import anyio
import anyio.to_thread
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.views.schedule import NOT_ATTENDED
from planwarden.storage.clock import SystemClock
from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, step

PLAN: dict[str, JsonValue] = {
    "inputs": {
        "type": "object",
        "properties": {"topic": {"type": "string"}, "many": {"type": "integer", "default": 3}},
        "required": ["topic"],
    },
    "todoList": [step("a", "find", {"topic": {"$from": "inputs", "pointer": "/topic"}})],
}
ADD = ("schedule", "add", "remind", "--cron", "0 9 * * 1", "--timezone", "Europe/Berlin", "--input", "topic=7")


@pytest.fixture(autouse=True)
def plans(cli: Cli) -> None:
    save(cli, "remind", PLAN)


def save(cli: Cli, name: str, document: JsonValue) -> None:
    (cli.home / "plans").mkdir(exist_ok=True)
    (cli.home / "plans" / f"{name}.json").write_text(json.dumps(document))


@requirement("schedule:commands")
def test_a_schedule_is_added_listed_paused_resumed_and_removed(cli: Cli) -> None:
    added = cli.main(*ADD)
    assert added.code == 0 and "remind  0 9 * * 1  Europe/Berlin  active" in added.out
    assert "next: Mon 20" in added.out and "09:00 CE" in added.out and 'topic = "7"' in added.out
    doctor = cli.main("doctor").out
    assert "1, 0 of them paused; the next tick is at 20" in doctor and "plan 'remind'" in doctor
    [row] = cli.main("schedule", "list", "--json").json["schedules"]
    schedule_id = row["scheduleId"]
    assert (row["plan"], row["inputs"], row["overlap"], row["missed"], row["owner"]) == (
        *("remind", {"topic": "7"}),
        *("skip", "latest", "local"),
    )
    assert len(row["nextTicks"]) == 3 and all("T09:00:00" in tick for tick in row["nextTicks"])
    paused = cli.main("schedule", "pause", schedule_id[:6], "--json").json
    assert paused["scheduleId"] == schedule_id and paused["pausedAt"] is not None and paused["nextTicks"] == []
    assert "paused" in cli.main("schedule", "list").out
    assert cli.main("schedule", "resume", schedule_id[:6], "--json").json["nextTicks"] == row["nextTicks"]
    assert cli.main("schedule", "remove", schedule_id[:6], "--json").json == {
        "scheduleId": schedule_id,
        "removed": True,
    }
    assert "No schedules." in cli.main("schedule", "list").out
    kinds = [line.split()[2:4] for line in cli.main("audit", "show").out.splitlines()]
    assert [["schedule", kind] for kind in ("added", "paused", "resumed", "removed")] == kinds
    assert cli.main("audit", "verify").code == 0


@requirement("schedule:commands", "schedule:refusals")
def test_what_cannot_be_scheduled_is_refused_in_a_sentence_and_not_stored(cli: Cli) -> None:
    for words, said in (
        (("--cron", "0 9 * *"), "'0 9 * *' is not a cron expression; write minute, hour"),
        (("--cron", "0 0 30 2 *"), "'0 0 30 2 *' never ticks"),
        (("--timezone", "Europe/Berln"), "there is no time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)"),
        (("--input", "many=x"), "inputs"),
        (("--input", "other=1"), "inputs"),
        (("--input", "topic"), "--input 'topic' is not NAME=VALUE"),
        (("--input", "topic=8"), "--input names 'topic' twice"),
        (("--overlap", "never"), "'never'"),
        (("--owner", " "), "'owner' must have 1 to 200 characters"),
        (("--owner", "a\x01"), "'owner' has a control character"),
    ):
        result = cli.main(*ADD, *words)
        assert result.code == 2 and len(result.err.strip().splitlines()) == 1 and said in result.err
    assert "there is no saved plan 'remid' (did you mean 'remind'?)" in cli.main(*ADD[:2], "remid", *ADD[3:]).err
    for word in ("pause", "resume", "remove", "run-now"):
        result = cli.main("schedule", word, "abc")
        assert result.code == 2 and "there is no schedule 'abc'; `planwarden schedule list`" in result.err
    assert cli.main("schedule", "list", "--json").json == {"schedules": []}


@requirement("schedule:commands")
def test_run_now_runs_the_plan_with_its_inputs_or_says_why_it_cannot(cli: Cli) -> None:
    schedule_id = cli.main(*ADD, "--json").json["scheduleId"]
    done = cli.main("schedule", "run-now", schedule_id[:8], "--json")
    assert done.code == 0 and done.json["scheduleId"] == schedule_id and done.json["status"] == "completed"
    assert cli.ledger == ["find 7"]
    [row] = cli.main("schedule", "list", "--json").json["schedules"]
    [tick] = row["recent"]
    assert tick["outcome"] == "started" and tick["threadId"] == row["lastThreadId"] == done.json["threadId"]
    assert f"started: thread {done.json['threadId'][:8]}" in cli.main("schedule", "list").out
    save(cli, "gone", PLAN)
    schedule_id = cli.main(*ADD[:2], "gone", *ADD[3:], "--json").json["scheduleId"]
    (cli.home / "plans" / "gone.json").unlink()
    result, doctor = cli.main("schedule", "run-now", schedule_id), cli.main("doctor", "--json")
    assert result.code == 1 and "Nothing was started: unknown_plan: " in result.out + result.err
    [check] = [check for check in doctor.json["checks"] if check["name"] == "schedules"]
    assert doctor.code == 1 and check["status"] == "broken"
    assert f"schedule {schedule_id[:8]} starts the plan 'gone', which is not there" in check["message"]


@requirement("schedule:commands", "schedule:overlap")
@pytest.mark.parametrize(("overlap", "code"), [("skip", 1), ("queue", 3)])
def test_run_now_starts_nothing_beside_a_run_that_waits(
    cli: Cli, overlap: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(cli, "clean", {"todoList": [ERASE]})
    added = cli.main("schedule", "add", "clean", "--cron", "0 9 * * 1", "--overlap", overlap, "--json")
    schedule_id = added.json["scheduleId"]
    assert cli.main("schedule", "run-now", schedule_id).code == 3
    later = SystemClock().now() + 5

    def read_later(clock: SystemClock) -> float:
        return later

    monkeypatch.setattr(SystemClock, "now", read_later)
    again = cli.main("schedule", "run-now", schedule_id, "--json")
    assert again.code == code and "not finished" in again.json["reason"]
    assert cli.ledger == [] and len(cli.main("list", "--json").json["suspensions"]) == 1


def test_add_list_and_doctor_say_when_no_server_runs_that_would_start_it(cli: Cli) -> None:
    added = cli.main(*ADD)
    command = f"planwarden --home {cli.home} serve --http"
    for said in (added, cli.main("schedule", "list"), cli.main("doctor")):
        assert said.code == 0 and NOT_ATTENDED in said.out and command in said.out

    async def look_while_a_server_runs() -> None:
        async with planwarden.Warden(home=cli.home):
            while NOT_ATTENDED in (await anyio.to_thread.run_sync(cli.spawn, "schedule", "list")).out:
                pass
            assert "warning" not in (await anyio.to_thread.run_sync(cli.spawn, "doctor", "--json")).out

    anyio.run(look_while_a_server_runs)
    assert NOT_ATTENDED in cli.main("schedule", "list").out
    assert NOT_ATTENDED not in cli.main("schedule", "pause", added.out.split()[7]).out


@requirement("hook:doctor")
@pytest.mark.parametrize(
    ("plan", "secret", "status", "said"),
    [
        ("remind", "whsec_" + "A" * 44, "ok", "/hooks/orders starts 'remind'"),
        ("remind", "", "warning", "hook 'orders': the environment variable ORDERS_SECRET is not set"),
        ("remind", "short", "warning", "ORDERS_SECRET is not whsec_ and 24 to 64 bytes in base64"),
        ("gone", "", "broken", "hook 'orders' starts the plan 'gone', which is not there; hook 'orders': the env"),
    ],
)
def test_doctor_names_a_hook_whose_plan_or_secret_is_missing(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, plan: str, secret: str, status: str, said: str
) -> None:
    monkeypatch.setenv("ORDERS_SECRET", secret)
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write(f'\n[hooks.orders]\nplan = "{plan}"\nsecret_env = "ORDERS_SECRET"\n')
    [check] = [check for check in cli.main("doctor", "--json").json["checks"] if check["name"] == "hooks"]
    assert check["status"] == status and said in check["message"]
