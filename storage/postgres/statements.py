"""The SQL of PostgreSQL, by name."""

from pathlib import Path

from planwarden.storage.sql.statements import load_migrations, load_statements

DIALECT = (
    # The planner chooses indexes and the order of joins.
    (r" INDEXED BY \w+( CROSS(?= JOIN))?", ""),
    (r"\bclock\((\$\d+)\)", r"coalesce(\1::float8, extract(epoch FROM clock_timestamp()))"),
)
SQL: dict[str, str] = load_statements(Path(__file__).parent, DIALECT)


def read_migrations() -> list[str]:
    """Return the scripts that bring a database from one schema to the next, oldest first."""
    return load_migrations(Path(__file__).parent, DIALECT)
