"""What every test module shares: one event loop back end, no network by default, campaigns only when asked for."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clients", action="store_true", help="also drive real clients from public registries")
    parser.addoption("--downstream", action="store_true", help="also start MCP servers from public registries")
    parser.addoption("--long", action="store_true", help="also run the campaigns of many minutes (marker `long`)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the campaigns out unless `--long` is given, public servers unless `--downstream` is, real clients unless `--clients` is."""
    unwanted = [name for name in ("long", "downstream", "clients") if not config.getoption(f"--{name}")]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unwanted)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
