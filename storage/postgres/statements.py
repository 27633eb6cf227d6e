"""The SQL of PostgreSQL, by name."""

from pathlib import Path

from planwarden.storage.sql.statements import load_statements

SQL: dict[str, str] = load_statements(Path(__file__).parent)
