"""The SQL of PostgreSQL, by name."""

from planwarden.storage.sql.statements import load_statements

SQL: dict[str, str] = load_statements("planwarden.storage.postgres")
