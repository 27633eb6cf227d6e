"""The base of everything that is stored: frozen values that `msgspec` encodes, decodes and copies in C.

For type checkers, `JsonValue` is pydantic's recursive type. At run time it is `Any`, because msgspec cannot resolve
recursive aliases; what msgspec decodes from JSON is always a JSON value.
"""

from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

import msgspec

__all__ = ["FrozenStruct", "JsonValue", "StoredStruct", "copy_fields", "plain_value"]

if TYPE_CHECKING:
    from pydantic import JsonValue
else:
    JsonValue = Any

Copy = TypeVar("Copy", bound=msgspec.Struct)


# The values form trees, never cycles, so the cyclic garbage collector need not look at them.
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class FrozenStruct(msgspec.Struct, frozen=True, gc=False):
    """Immutable, compared by value; fields are given by name."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class StoredStruct(FrozenStruct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Stored as a list of its fields, in order. A new field goes to the end and has a default, which never changes."""


def copy_fields(kind: type[Copy], source: object, /, **others: object) -> Copy:
    """Return a struct of this kind with the fields in `others`, and with every other field that the source has."""
    names = [name for name in kind.__struct_fields__ if name not in others and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **others)


def plain_value(value: object) -> object:
    """Return a tool's value as plain `str` or `float` if its type is a subclass; msgspec calls this as `enc_hook`."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
