"""JSON Schema validation of hostile input: linear-time patterns, no fetching, bounded references, few faults.

The library is `jsonschema-rs`. With `RegexOptions` it uses an engine that cannot backtrack
(https://docs.rs/regex/latest/regex/#untrusted-input). `Schema` refuses remote references, and estimates the cost of the
others before it compiles them, see `planwarden.agent.common.schema_cost`.
"""

from itertools import islice
from typing import Any

import jsonschema_rs
from pydantic import JsonValue

from planwarden.agent.common.schema_cost import estimate_cost

MAX_FAULTS = 20


class Schema:
    """A compiled schema."""

    def __init__(self, schema: dict[str, JsonValue]) -> None:
        """Raises `ValueError` if it is no JSON Schema, refers to anything outside itself, or costs too much."""
        self._cost = estimate_cost(schema)
        self._validator = jsonschema_rs.validator_for(
            schema, pattern_options=jsonschema_rs.RegexOptions(), retriever=_refuse_to_fetch, validate_formats=False
        )

    def find_faults(self, value: JsonValue) -> tuple[str, ...]:
        """Returns a sentence per fault, at most `MAX_FAULTS`; empty if the value fits."""
        if not self._cost.is_affordable(value):
            return ("the value is nested too deeply for a schema as recursive as this one",)
        try:
            if self._validator.is_valid(value):
                return ()
            return tuple(_describe_fault(error) for error in islice(self._validator.iter_errors(value), MAX_FAULTS))
        except UnicodeEncodeError:
            # JSON can escape half a surrogate pair, and the library reads UTF-8, which has none.
            return ("the value contains text that is not Unicode: half of a surrogate pair",)


def _describe_fault(error: jsonschema_rs.ValidationError) -> str:
    where = "".join(f"/{part}" for part in error.instance_path)
    return f"{where}: {error.message[:300]}" if where else error.message[:300]


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"remote reference {uri!r} is not followed")
