"""What `serve` says when it starts."""

import pytest

from planwarden.server.cli.commands.serve import describe_addresses

LOCAL = "http://127.0.0.1:8765/mcp"


@pytest.mark.parametrize(
    ("public_url", "expected"),
    [
        (None, "listens on http://127.0.0.1:8765/mcp; its inbox is http://127.0.0.1:8765/inbox,"),
        (
            "https://plan.example.com/",
            (
                "listens on http://127.0.0.1:8765/mcp, for clients https://plan.example.com/mcp; "
                "its inbox is https://plan.example.com/inbox,"
            ),
        ),
    ],
)
def test_the_start_line_names_the_address_that_clients_and_people_use(public_url: str | None, expected: str) -> None:
    assert expected in describe_addresses(LOCAL, public_url)
