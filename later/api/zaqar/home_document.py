"""The home document of Zaqar's API (draft-nottingham-json-home-03): the resources that are there, and their methods."""

from __future__ import annotations

import re
from collections.abc import Mapping

QUEUE = "/v2/queues/{queue_name}"
MESSAGE = f"{QUEUE}/messages/{{message_id}}"
CLAIM = f"{QUEUE}/claims/{{claim_id}}"
RESOURCES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "queues": ("/v2/queues{?marker,limit,detailed,with_count}", ("GET",)),
    "queue": (QUEUE, ("GET", "PUT", "DELETE", "PATCH")),
    "queue_stats": (f"{QUEUE}/stats", ("GET",)),
    "queue_purge": (f"{QUEUE}/purge", ("POST",)),
    "messages": (f"{QUEUE}/messages{{?marker,limit,echo,include_claimed,include_delayed}}", ("GET",)),
    "post_messages": (f"{QUEUE}/messages", ("POST",)),
    "messages_delete": (f"{QUEUE}/messages{{?ids,pop}}", ("DELETE",)),
    "message_get": (MESSAGE, ("GET",)),
    "message_delete": (f"{MESSAGE}{{?claim_id}}", ("DELETE",)),
    "post_claim": (f"{QUEUE}/claims{{?limit}}", ("POST",)),
    "claim": (CLAIM, ("GET",)),
    "patch_claim": (CLAIM, ("PATCH",)),
    "delete_claim": (CLAIM, ("DELETE",)),
    "ping": ("/v2/ping", ("GET",)),
    "health": ("/v2/health", ("GET",)),
}
"""The template and the methods of each resource, by the name of its relation."""
LIMITS = {"queues": "queue_limit", "messages": "messages_limit", "post_claim": "claim_limit"}
"""The relation of the parameter `limit`, which is not the same everywhere."""


def home_document() -> dict[str, object]:
    """Return the document."""
    return {"resources": {f"rel/{name}": _resource(name, *entry) for name, entry in RESOURCES.items()}}


def _resource(name: str, template: str, methods: tuple[str, ...]) -> dict[str, object]:
    hints: dict[str, object] = {"allow": methods, "formats": {"application/json": {}}}
    if methods == ("POST",):
        hints["accept-post"] = ["application/json"]
    variables = [variable for group in re.findall(r"{\??([^}]*)}", template) for variable in group.split(",")]
    if not variables:
        return {"href": template, "hints": hints}
    relations = {variable: variable for variable in variables}
    if "limit" in relations:
        relations["limit"] = LIMITS[name]
    return {
        "href-template": template,
        "href-vars": {variable: f"param/{relation}" for variable, relation in relations.items()},
        "hints": hints,
    }
