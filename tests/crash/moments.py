"""Whether a process dies before or after a store call, and on which store."""

from tests.storage.suite import Memory, Postgres, Sqlite
from tests.support.slices import first_only

MOMENTS = first_only(
    ("after", Sqlite),
    ("before", Postgres),
    ("before", Sqlite),
    ("after", Postgres),
    ("before", Memory),
    ("after", Memory),
    keep=2,
)
"""As parameters `when` and `kind` of a test."""
