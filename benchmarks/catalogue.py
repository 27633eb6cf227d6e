"""A catalogue for token measurements: up to 1,000 different tools with schemas of about 700 characters each.

Services, objects and verbs are combined so that most tools have near neighbours (`crm_update_contact`,
`crm_update_company`, `helpdesk_update_ticket`), which is what makes finding the right one hard.
"""

import json
from collections.abc import Iterator

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
    "search": "Search for {objects} in the {service} by words, state or date",
    "get": "Read one {object} of the {service} with all its fields",
    "create": "Create a new {object} in the {service}",
    "update": "Change fields of an existing {object} in the {service}",
    "delete": "Delete a {object} from the {service} for good",
    "export": "Export {objects} of the {service} as CSV",
    "assign": "Assign a {object} of the {service} to a person or team",
    "merge": "Merge two duplicate {objects} of the {service} into one",
}


async def _nothing(arguments: dict[str, JsonValue], context: CallContext) -> object:
    return None


def catalogue(count: int) -> list[Tool]:
    """Returns the first `count` tools, the same ones every time."""
    return [tool for tool, _ in zip(_tools(), range(count), strict=False)]


def _tools() -> Iterator[Tool]:
    # Verb by verb, so that a small catalogue already holds many services.
    for verb, sentence in VERBS.items():
        for number in range(6):
            for service, (title, objects) in SERVICES.items():
                yield _tool(service, verb, objects[number], sentence, title)


def _tool(service: str, verb: str, thing: str, sentence: str, title: str) -> Tool:
    name = thing.replace("_", " ")
    text = sentence.format(object=name, objects=f"{name}s", service=title)
    return Tool(
        define(
            ToolDefinition(
                name=f"{service}_{verb}_{thing}",
                description=f"{text}.",
                input_schema=schema(name),
                capabilities=(service,),
                risk="read" if verb in ("search", "get", "export") else "dangerous",
            )
        ),
        _nothing,
    )


def schema(name: str) -> dict[str, JsonValue]:
    """An input schema of about 700 characters, as real servers have them."""
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": f"Identifier of the {name}, as search returns it"},
            "fields": {
                "type": "object",
                "description": f"Fields of the {name} to set or return, by name",
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            },
            "filter": {
                "type": "string",
                "maxLength": 500,
                "description": "Words to narrow it down",
            },
            "since": {
                "type": "string",
                "format": "date-time",
                "description": "Only what changed after this time",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "At most so many"},
            "dry_run": {
                "type": "boolean",
                "default": False,
                "description": "Check and report without changing anything",
            },
        },
        "required": ["id"],
        "additionalProperties": False,
    }


def schema_chars() -> int:
    return len(json.dumps(schema("contact")))


QUERIES: tuple[tuple[str, str], ...] = (
    ("find contacts in the CRM who were not touched for a year", "crm_search_contact"),
    ("look up the company record of Acme", "crm_get_company"),
    ("open a new deal for the Zurich lead", "crm_create_deal"),
    ("merge the two duplicate contacts of Ann Smith", "crm_merge_contact"),
    ("hand the deal over to the enterprise team", "crm_assign_deal"),
    ("which support tickets are still open", "helpdesk_search_ticket"),
    ("close the ticket by changing its state", "helpdesk_update_ticket"),
    ("read the satisfaction survey of last week", "helpdesk_get_satisfaction_survey"),
    ("give ticket 4711 to the network team", "helpdesk_assign_ticket"),
    ("put a dentist event into my calendar", "calendar_create_event"),
    ("is the big room free on Friday", "calendar_search_room"),
    ("send an invitation to the review", "calendar_create_invitation"),
    ("remove the reminder about the rent", "calendar_delete_reminder"),
    ("search my mailbox for messages from the tax office", "mail_search_message"),
    ("write a draft answering the landlord", "mail_create_draft"),
    ("change my mail signature", "mail_update_signature"),
    ("get the attachment of that message", "mail_get_attachment"),
    ("make a share link for the annual report", "files_create_share_link"),
    ("restore the earlier version of the document", "files_get_version"),
    ("delete the old archive from the file storage", "files_delete_archive"),
    ("create a branch for the fix", "git_create_branch"),
    ("list pull requests waiting for me", "git_search_pull_request"),
    ("publish a new release of the library", "git_create_release"),
    ("assign the crash issue to Bob", "git_assign_issue"),
    ("why did the last build fail", "ci_get_build"),
    ("rotate the deployment secret on the build server", "ci_update_secret"),
    ("download the artifact of the nightly build", "ci_get_artifact"),
    ("refund the order of Mrs Keller", "shop_create_refund"),
    ("how many of product 12 are left, check the inventory level", "shop_get_inventory_level"),
    ("create a coupon for ten percent off", "shop_create_coupon"),
    ("where is the shipment", "shop_search_shipment"),
    ("send the invoice for March", "billing_create_invoice"),
    ("cancel the subscription of a customer for good", "billing_delete_subscription"),
    ("export all payments of the quarter as CSV", "billing_export_payment"),
    ("approve the leave request by updating it", "hr_update_leave_request"),
    ("show me my payslip", "hr_get_payslip"),
    ("add an applicant for the engineering job", "hr_create_applicant"),
    ("run a query on the warehouse", "warehouse_search_query"),
    ("export the sales dataset", "warehouse_export_dataset"),
    ("stop and delete the test server in the cloud", "cloud_delete_server"),
    ("take a snapshot of the volume", "cloud_create_snapshot"),
    ("change a DNS record of our domain", "cloud_update_dns_record"),
    ("open a firewall rule for port 443", "cloud_create_firewall_rule"),
    ("post in the announcements channel", "chat_create_post"),
    ("start a poll about lunch", "chat_create_poll"),
    ("find the wiki page about onboarding", "wiki_search_page"),
    ("silence the disk alert for an hour", "monitoring_create_silence"),
    ("plan a route from Bern to Basel", "maps_search_route"),
    ("book a flight to Oslo", "travel_create_flight"),
    ("renew the loan of the book", "library_update_loan"),
)
"""What people write, and the tool that does it; each tool is among the first 1,000."""
