"""Offers saved plans as Agent Skills (extension `io.modelcontextprotocol/skills`), one folder for each plan.

`SKILL.md` says how to call `run_plan`, and `references/inputs.json` has the whole schema of the inputs, if there are
any. No line of `SKILL.md` begins with a plan's own text. In the front matter such text is JSON, so it cannot break out.

Source: https://github.com/modelcontextprotocol/ext-skills/blob/main/specification/stable/skills.mdx (SEP-2640).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, PaginatedRequestParams, RequestParams, Resource
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field as Limits

from planwarden.agent.common.artifact import JSON_TYPE
from planwarden.server.mcp.prompts import WAIT_FOR_PERSON, cut_line, describe_plan, list_arguments
from planwarden.server.mcp.requests import ServiceContext
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.views.fields import Field

SCHEME, MANIFEST, INPUTS = "skill://", "SKILL.md", "references/inputs.json"
MARKDOWN, FOLDER = "text/markdown", "inode/directory"
MAX_DESCRIPTION_CHARS = 1_024
"""The most characters that the Agent Skills format allows in a description."""
MAX_INPUT_CHARS = 200
MAX_URI_CHARS = 300
FRESH_MS = 5_000

Document = dict[str, Any]
ListPlans = Callable[[], Awaitable[Sequence[SavedPlan]]]


class UriParams(RequestParams):
    """Parameters of `skills/get`."""

    uri: Annotated[str, Limits(max_length=MAX_URI_CHARS)]


class DirectoryParams(PaginatedRequestParams, UriParams):
    """Parameters of `resources/directory/read`."""


class Skill(msgspec.Struct, frozen=True):
    """A saved plan as a folder of files."""

    name: str
    description: str
    files: dict[str, str]
    """The text of each file, by its path below the folder."""

    @property
    def root(self) -> str:
        return f"{SCHEME}{self.name}"

    @property
    def entry(self) -> Document:
        """The skill's entry in the results of `skills/list` and `skills/get`."""
        return {
            "uri": f"{self.root}/{MANIFEST}",
            "frontmatter": {"name": self.name, "description": self.description},
            "resources": [
                {
                    "uri": f"{self.root}/{path}",
                    "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
                    "size": len(data),
                }
                for path, data in ((path, text.encode()) for path, text in self.files.items())
            ],
        }

    @property
    def resource(self) -> Resource:
        """The entry of `SKILL.md` in the result of `resources/list`."""
        uri = f"{self.root}/{MANIFEST}"
        return Resource(uri=uri, name=self.name, description=self.description, mime_type=MARKDOWN)


class Skills(Extension):
    """Serves the plans from `list_plans` as skills."""

    identifier = "io.modelcontextprotocol/skills"

    def __init__(self, list_plans: ListPlans) -> None:
        self._list_plans = list_plans

    def settings(self) -> dict[str, Any]:
        return {"directoryRead": True}

    def methods(self) -> Sequence[MethodBinding]:
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("skills/list", PaginatedRequestParams, self._list, versions),
            MethodBinding("skills/get", UriParams, self._get, versions),
            MethodBinding("resources/directory/read", DirectoryParams, self._read_directory, versions),
        )

    async def list(self) -> Sequence[Skill]:
        """Return a skill for each saved plan, except those for which `find_skill_clash` gives a reason."""
        plans = await self._list_plans()
        return [_build_skill(plan) for plan in plans if find_skill_clash(plan.name, plans) is None]

    async def read(self, uri: str) -> tuple[str, str] | None:
        """Return the text and the media type of the file at the address; None if there is no such file."""
        for skill in await self.list():
            path = uri.removeprefix(f"{skill.root}/")
            if path in skill.files:
                return skill.files[path], MARKDOWN if path == MANIFEST else JSON_TYPE
        return None

    async def _list(self, ctx: ServiceContext, params: PaginatedRequestParams) -> Document:
        _refuse_cursor(params)
        return _complete({"skills": [skill.entry for skill in await self.list()]}, is_cacheable=True)

    async def _get(self, ctx: ServiceContext, params: UriParams) -> Document:
        for skill in await self.list():
            if params.uri == f"{skill.root}/{MANIFEST}":
                return _complete({"skill": skill.entry}, is_cacheable=True)
        raise MCPError(code=INVALID_PARAMS, message=f"no skill is served at {params.uri}")

    async def _read_directory(self, ctx: ServiceContext, params: DirectoryParams) -> Document:
        _refuse_cursor(params)
        for skill in await self.list():
            folder, _, name = INPUTS.partition("/")
            inputs_file = Resource(uri=f"{skill.root}/{INPUTS}", name=name, mime_type=JSON_TYPE)
            inputs_folder = Resource(uri=f"{skill.root}/{folder}", name=folder, mime_type=FOLDER)
            children = {skill.root: [skill.resource]}
            if INPUTS in skill.files:
                children = {skill.root: [skill.resource, inputs_folder], inputs_folder.uri: [inputs_file]}
            if params.uri in children:
                listed = children[params.uri]
                dumps = [child.model_dump(by_alias=True, mode="json", exclude_none=True) for child in listed]
                return _complete({"resources": dumps})
        raise MCPError(code=INVALID_PARAMS, message=f"{params.uri} is not a folder of a skill")


def name_skill(plan_name: str) -> str:
    """Return the name of the plan's skill: lowercase letters, digits and single hyphens; empty if nothing is left."""
    return "-".join(filter(None, plan_name.lower().replace("_", "-").split("-")))


def find_skill_clash(plan_name: str, plans: Sequence[SavedPlan]) -> str | None:
    """Return the reason why the plan with this name cannot be a skill, or None if it can."""
    name = name_skill(plan_name)
    if not name:
        return "its name has no letter and no digit"
    if Counter(name_skill(plan.name) for plan in plans)[name] > 1:
        others = [plan.name for plan in plans if plan.name != plan_name and name_skill(plan.name) == name]
        return f"its name as a skill, {name!r}, is that of {', '.join(others)} too"
    return None


def _build_skill(plan: SavedPlan) -> Skill:
    name, description = name_skill(plan.name), describe_plan(plan, MAX_DESCRIPTION_CHARS)
    title = cut_line(plan.title or "", MAX_INPUT_CHARS) or name
    fields = list_arguments(plan)
    inputs = {field.name: f"<{field.schema.get('type', 'value')}>" for field in fields if field.must_be_given}
    call = {"name": plan.name, **({"inputs": inputs} if inputs else {})}
    text = f"""---
name: {_quote(name)}
description: {_quote(description)}
---

# {title}

This is a saved plan. Do not do its steps yourself: call planwarden's tool `run_plan` with

    {_quote(call)}

and do what nextAction in each result says until status is completed. {WAIT_FOR_PERSON}
"""
    if not fields:
        return Skill(name, description, {MANIFEST: text})
    text += f"\nInputs (the whole schema is in [{INPUTS}]({INPUTS})):\n\n"
    for field in fields:
        meaning = cut_line(field.description, MAX_INPUT_CHARS)
        facts = [cut_line(text, MAX_INPUT_CHARS) for text in (_quote(field.name), _say_need(field))]
        text += f"- {', '.join(facts)}{f': {meaning}' if meaning else ''}\n"
    schema = json.dumps(plan.inputs, ensure_ascii=False, indent=1) + "\n"
    return Skill(name, description, {MANIFEST: text, INPUTS: schema})


def _say_need(field: Field) -> str:
    if field.must_be_given:
        return "required"
    return f"default {_quote(field.value)}" if field.is_present else "optional"


def _quote(value: object) -> str:
    """Return the value as JSON on one line, which YAML reads as the same value."""
    return json.dumps(value, ensure_ascii=False)


def _complete(result: Document, *, is_cacheable: bool = False) -> Document:
    caching = {"ttlMs": FRESH_MS, "cacheScope": "public"} if is_cacheable else {}
    return {"resultType": "complete", **result, **caching}


def _refuse_cursor(params: PaginatedRequestParams) -> None:
    """Raise `MCPError` for a cursor, because each list is one page."""
    if params.cursor is not None:
        raise MCPError(code=INVALID_PARAMS, message="this list has one page, so it has no cursor")
