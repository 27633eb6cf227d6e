"""URLs of stores: what they name, what is refused, and that no password is repeated."""

from pathlib import Path

import pytest

from planwarden.agent.common.errors import InvalidArguments
from planwarden.storage.location import StoreLocation, read_location


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_of_postgresql_names_it(scheme: str) -> None:
    found = read_location(f"{scheme}://ann:secret@db.example:5433/plans", "postgresql://ann@direct/plans")
    assert found.path is None
    assert found.url == f"{scheme}://ann:secret@db.example:5433/plans"
    assert found.control_url == "postgresql://ann@direct/plans"
    assert found.is_made


def test_what_names_a_location_has_no_password() -> None:
    found = read_location("postgresql://ann:secret@db.example:5433/plans?password=secret")
    assert str(found) == "postgresql://db.example:5433/plans"
    assert "secret" not in repr(found)
    assert found.has_password
    assert not read_location("postgresql://ann@db.example/plans").has_password


def test_a_url_of_sqlite_names_a_file(tmp_path: Path) -> None:
    assert read_location("sqlite:////var/lib/plans.db") == StoreLocation(path=Path("//var/lib/plans.db"))
    found = read_location(f"sqlite://{tmp_path}/plans.db")
    assert found.path == tmp_path / "plans.db"
    assert not found.is_made
    assert read_location("sqlite:///~/plans.db").path == Path.home() / "plans.db"


@pytest.mark.parametrize(
    "url",
    ["mysql://ann:secret@host/x", "secret", "sqlite://relative/secret.db", "sqlite://", "postgresql://host:secret/x"],
)
def test_any_other_text_is_refused_with_the_known_forms_and_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidArguments, match="sqlite:///FILE") as refused:
        read_location(url)
    assert "secret" not in str(refused.value)


def test_a_control_url_leads_to_postgresql_too() -> None:
    with pytest.raises(InvalidArguments, match="control URL"):
        read_location("postgresql://host/x", "sqlite:///x")
