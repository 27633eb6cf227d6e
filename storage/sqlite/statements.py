"""The SQL of SQLite, by name."""

from pathlib import Path

from planwarden.storage.sql.statements import load_migrations, load_statements

DIALECT = (
    (r"\$(\d+)", r"?\1"),
    (r"::\w+", ""),
    (r' COLLATE "C"', ""),
    # Nobody else writes while a transaction writes.
    (r"\s+FOR UPDATE( SKIP LOCKED)?", ""),
    (r"OVERRIDING SYSTEM VALUE ", ""),
    (r"\bnext_number\(\)", "(SELECT coalesce(max(number), 0) + 1 FROM executions)"),
    (r"\bclock\((\?\d+)\)", r"\1"),
    (r"\bjson_array_elements_text\((\?\d+)\)", r"value FROM json_each(\1)"),
    # `min` of several values is NULL where one of them is.
    (r"\bleast\(([\w.]+), ([\w.]+)\)", r"min(coalesce(\1, \2), coalesce(\2, \1))"),
    (r"\bgreatest\(", "max("),
    (r"\bstrpos\(", "instr("),
    (r"\bchr\(", "char("),
    (r"\bbigint GENERATED ALWAYS AS IDENTITY\b|\bbigint\b|\bboolean\b", "INTEGER"),
    (r"\bdouble precision\b", "REAL"),
    (r"\bbytea\b", "BLOB"),
    (r"^\);$", ") STRICT;"),
)
SQL: dict[str, str] = load_statements(Path(__file__).parent, DIALECT)


def read_migrations() -> list[str]:
    """Return the scripts that bring a file from one schema to the next, oldest first."""
    return load_migrations(Path(__file__).parent, DIALECT)
