"""`[[notify]]` in the operator's file: what is accepted, what is refused, and what is never shown."""

from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.settings.configuration import load_settings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WEBHOOK = '[[notify]]\nkind = "webhook"\nurl = "https://hooks.example/t0psecret?x=1"\nsecret_env = "HOOK_SECRET"\n'
NTFY = '[[notify]]\nkind = "ntfy"\nurl = "https://ntfy.sh/t0psecret"\n'


def test_the_file_names_channels_and_the_environment_holds_their_secrets(tmp_path: Path) -> None:
    text = WEBHOOK + 'events = ["escalated"]\n' + NTFY + 'token_env = "NTFY_TOKEN"\nname = "phone"\n'
    (tmp_path / "planwarden.toml").write_text(text)
    environment = {"HOOK_SECRET": f" {SECRET}\n", "NTFY_TOKEN": "tk_s3cret"}
    settings = load_settings(home=tmp_path, environment=environment)
    web, push = settings.channels
    assert (web.name, web.host, web.events, web.problem) == (
        "webhook:hooks.example",
        "hooks.example",
        {"escalated"},
        None,
    )
    assert (push.name, push.host, push.token, len(push.events)) == ("phone", "ntfy.sh", "tk_s3cret", 5)
    assert len(web.key) == 24
    for hidden in ("t0psecret", "tk_s3cret", SECRET[6:], repr(web.key)):
        assert hidden not in repr(settings)


def test_a_secret_that_is_missing_or_wrong_is_the_channels_problem_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "planwarden.toml").write_text(WEBHOOK)

    def find_problem(**environment: str) -> str | None:
        [channel] = load_settings(home=tmp_path, environment=environment).channels
        return channel.problem

    for nothing in ({}, {"HOOK_SECRET": ""}):
        assert find_problem(**nothing) == "the environment variable HOOK_SECRET is not set"
    for wrong in ("whsec_c2hvcnQ=", "correct horse battery staple", "whsec_" + "A" * 120, "whsec_Łódź"):
        problem = find_problem(HOOK_SECRET=wrong) or ""
        assert "is not whsec_ and 24 to 64 bytes in base64" in problem and wrong not in problem
    assert find_problem(HOOK_SECRET=SECRET.removeprefix("whsec_")) is None


def test_a_token_that_cannot_be_a_header_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "planwarden.toml").write_text(NTFY + 'token_env = "NTFY_TOKEN"\n')
    for token in ("", "two words", "line\nbreak", "Łódź"):
        [channel] = load_settings(home=tmp_path, environment={"NTFY_TOKEN": token}).channels
        assert channel.token is None and channel.problem == "the environment variable NTFY_TOKEN holds no token"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WEBHOOK.replace("https:", "http:"), "plain http is allowed for this machine only"),
        (WEBHOOK.replace("https:", "file:"), "not an address that a notification can be sent to"),
        (WEBHOOK.replace("hooks.example", "ann:pw@hooks.example"), "must not hold a user name or password"),
        (WEBHOOK.replace("hooks.example", "hooks.example:99999"), "not an address"),
        (WEBHOOK.replace("hooks.example", "hooks example"), "not an address"),
        (WEBHOOK.replace("hooks.example", ""), "not an address"),
        (WEBHOOK.replace("?x=1", "#x"), "not an address"),
        (WEBHOOK.replace('secret_env = "HOOK_SECRET"', ""), "a webhook is signed"),
        (WEBHOOK + 'token_env = "X"', "a webhook is signed"),
        (WEBHOOK.replace('"HOOK_SECRET"', '"whsec_abc/+="'), "secret_env"),
        (NTFY + 'secret_env = "X"', "ntfy uses no secret_env"),
        (NTFY.replace("/t0psecret", ""), "one topic"),
        (NTFY.replace("/t0psecret", "/a/b"), "one topic"),
        (NTFY.replace("/t0psecret", "/a?auth=b"), "one topic"),
        (NTFY + "events = []", "events"),
        (NTFY + 'events = ["everything"]', "events"),
        (NTFY + 'events = ["test"]', "events"),
        (NTFY + 'name = "a\\nb"', "name"),
        (NTFY + 'secret = "x"', "unknown key"),
        (NTFY + NTFY, "two .* channels called 'ntfy:ntfy.sh'; give each a different 'name'"),
        ("".join(f'{NTFY}name = "n{number}"\n' for number in range(11)), "the limit is 10"),
    ],
)
def test_a_channel_that_cannot_work_is_refused_without_repeating_its_address(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "planwarden.toml").write_text(text)
    with pytest.raises(InvalidArguments, match=said) as refused:
        load_settings(home=tmp_path, environment={"HOOK_SECRET": SECRET})
    assert "t0psecret" not in refused.value.message and "pw" not in refused.value.message


def test_plain_http_is_for_this_machine(tmp_path: Path) -> None:
    for host in ("127.0.0.1:8080", "localhost:1", "[::1]:80", "127.8.8.8"):
        (tmp_path / "planwarden.toml").write_text(WEBHOOK.replace("https://hooks.example", f"http://{host}"))
        [channel] = load_settings(home=tmp_path, environment={"HOOK_SECRET": SECRET}).channels
        assert channel.host == host
