"""A catalogue for prompts: up to 252 different tools with schemas of about 700 characters each.

Services, objects and verbs are combined so that most tools have near neighbours, such as `crm_get_contact`,
`crm_get_company` and `helpdesk_get_ticket`.
"""

from itertools import islice, product

from pydantic import JsonValue

from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.tools.base import Tool, define

SERVICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "crm": ("customer relationship system", ("contact", "company", "deal", "activity", "pipeline", "segment")),
    "helpdesk": ("support desk", ("ticket", "reply", "macro", "queue", "satisfaction_survey", "agent")),
    "calendar": ("shared calendar", ("event", "invitation", "room", "reminder", "availability", "holiday")),
    "mail": ("mailbox", ("message", "draft", "folder", "filter", "signature", "attachment")),
    "files": ("file storage", ("document", "folder", "share_link", "version", "comment", "archive")),
    "git": ("source code host", ("branch", "commit", "pull_request", "issue", "release", "webhook")),
    "ci": ("build server", ("build", "pipeline_run", "artifact", "runner", "secret", "schedule")),
    "shop": ("web shop", ("order", "product", "coupon", "refund", "shipment", "inventory_level")),
    "billing": ("billing system", ("invoice", "subscription", "payment", "credit_note", "tax_rate", "dunning_notice")),
    "hr": ("personnel system", ("employee", "leave_request", "contract", "payslip", "review", "applicant")),
    "warehouse": ("data warehouse", ("table", "query", "dashboard", "dataset", "metric", "export")),
    "cloud": ("cloud account", ("server", "volume", "network", "snapshot", "firewall_rule", "dns_record")),
    "chat": ("team chat", ("channel", "post", "thread", "emoji", "bot", "poll")),
    "wiki": ("knowledge base", ("page", "space", "template", "label", "redirect", "glossary_term")),
    "monitoring": ("monitoring system", ("alert", "silence", "probe", "incident", "log_query", "status_page")),
    "maps": ("geographic service", ("address", "route", "place", "distance", "timezone", "elevation")),
    "social": ("social media scheduler", ("campaign", "post_schedule", "audience", "hashtag", "mention", "influencer")),
    "travel": ("travel desk", ("flight", "hotel", "train_ticket", "visa", "expense", "itinerary")),
    "fleet": ("vehicle fleet", ("vehicle", "driver", "trip", "maintenance", "fuel_card", "geofence")),
    "lab": ("laboratory system", ("sample", "assay", "instrument", "reagent", "protocol", "result")),
    "library": ("library catalogue", ("book", "loan", "reservation", "author", "fine", "branch_office")),
}
VERBS: dict[str, str] = {
    "search": "Search for {object}s in the {service} by words, state or date",
    "get": "Read one {object} of the {service} with all its fields",
}


def catalogue(count: int) -> list[Tool]:
    """Return the first `count` tools, the same ones every time."""
    return [_make_tool(*parts) for parts in islice(product(VERBS, range(6), SERVICES), count)]


def _make_tool(verb: str, number: int, service: str) -> Tool:
    title, objects = SERVICES[service]
    thing = objects[number].replace("_", " ")
    return Tool(
        define(
            ToolDefinition(
                name=f"{service}_{verb}_{objects[number]}",
                description=f"{VERBS[verb].format(object=thing, service=title)}.",
                input_schema=_make_schema(thing),
                capabilities=(service,),
                risk="read",
            )
        ),
        _do_nothing,
    )


async def _do_nothing(arguments: dict[str, JsonValue], context: CallContext) -> object:
    return None


def _make_schema(name: str) -> dict[str, JsonValue]:
    fields: dict[str, JsonValue] = {
        "type": "object",
        "description": f"Fields of the {name} to set or return, by name",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    }
    since = "Only what changed after this time"
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": f"Identifier of the {name}, as search returns it"},
            "fields": fields,
            "filter": {"type": "string", "maxLength": 500, "description": "Words to narrow it down"},
            "since": {"type": "string", "format": "date-time", "description": since},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "At most so many"},
            "dry_run": {"type": "boolean", "default": False, "description": "Check and report, and change nothing"},
        },
        "required": ["id"],
        "additionalProperties": False,
    }
