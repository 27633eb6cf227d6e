"""Which model a setting names."""

from pathlib import Path

from planwarden.agent.errors import InvalidArguments
from planwarden.agent.llm import CallerModel, ScriptedModel
from planwarden.agent.ports import Model


def build_model(name: str) -> Model:
    """`caller`, or `scripted:FILE`.

    Raises:
        InvalidArguments: there is no such model here, or the script cannot be used.
    """
    if name == "caller":
        return CallerModel()
    kind, _, rest = name.partition(":")
    if kind == "scripted" and rest:
        return ScriptedModel.from_file(Path(rest).expanduser())
    raise InvalidArguments(
        f"unknown model {name[:80]!r}; use 'caller' or 'scripted:FILE' (PLANWARDEN_MODEL or --model)"
    )
