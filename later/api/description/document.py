"""The document: the description of the API in OpenAPI 3.1, made of the table of operations and the routes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from later import __version__
from later.api.batch_body import NDJSON
from later.api.description.answer_schemas import answer_schemas
from later.api.description.callbacks import callback_operation, event_operation
from later.api.description.json_schema import BOOLEAN, TIME, Schema, choice, integer, number, reference, string
from later.api.description.operation import TEXT, Operation
from later.api.description.operations import OPERATIONS, TAGS
from later.api.description.request_schemas import CURSOR, ID, NAMESPACE, TOPIC, request_schemas
from later.api.forecast import MAX_STEP_S
from later.api.history import MAX_SHOWN_DELIVERIES, OUTCOMES
from later.api.overview import MAX_TOPICS
from later.api.problem_types import (
    CROSS_SITE,
    FAULT,
    NO_KEY,
    NOT_ALLOWED,
    PROBLEM_TYPES,
    REFUSED,
    SLOW_BODY,
    STORE_AWAY,
    TOO_LARGE,
    TOO_OFTEN,
    UNSUPPORTED,
    ProblemType,
)
from later.api.requests import MAX_PAGE_SIZE
from later.api.topics import TOPIC_ORDERS
from later.core.api_keys import Scope
from later.core.durability import Durability
from later.core.forecast import MAX_HOURS, MAX_STEPS
from later.core.history import RESOLUTIONS
from later.core.policy import MAX_LIMIT

OPENAPI_VERSION = "3.1.1"
JSON = "application/json"
PROBLEM = "application/problem+json"
KEY = "key"
"""The name of the security scheme."""

_JOB = string(1, 128, pattern=ID["pattern"])
PATH_PARAMETERS: Mapping[str, Schema] = {
    "topic": TOPIC,
    "namespace": NAMESPACE,
    "id": _JOB,
    "name": choice([*PROBLEM_TYPES]),
}
QUERY_PARAMETERS: Mapping[str, tuple[Schema, str]] = {
    "applied": (BOOLEAN, "true: all that applies, not only what is set here"),
    "cursor": (CURSOR, "the cursor of the page before"),
    "durability": (
        choice([*Durability]),
        "where the items must be before they are answered; the policies of their topics may ask for more",
    ),
    "dry_run": (BOOLEAN, "true: check only, and change nothing"),
    "hours": (integer(1, MAX_HOURS), "the hours that a forecast covers"),
    "job": (_JOB, "the bulk job that counts the items"),
    "limit": (integer(1, MAX_PAGE_SIZE), "the number of entries of a page"),
    "namespace": (NAMESPACE, "only what is in this namespace"),
    "pending": (BOOLEAN, "true: leave dead tasks as they are"),
    "rate": (number(0, MAX_LIMIT), "the rate to simulate instead of the topic's; 0: none"),
    "topics": (integer(0, MAX_TOPICS), "the number of topics"),
    "run": (_JOB, "the run of the job that counts the items"),
    "step": (integer(1, MAX_STEP_S), f"the length of a step in seconds, for at most {MAX_STEPS} steps"),
}
OWN_QUERY_PARAMETERS: Mapping[str, Mapping[str, tuple[Schema, str]]] = {
    "showHistory": {
        "series": (string(1), "names of series, with commas between them: docs/history.md lists them"),
        "since": (TIME, "when the first slot began; by default an hour ago, and a day ago with step=300"),
        "step": (
            {"type": "integer", "enum": [*RESOLUTIONS]},
            "the length of the slots in seconds: 10, the default, or 300, the only one of topics",
        ),
        "topic": (TOPIC, "only what happened in this topic"),
    },
    "listTopics": {
        "sort": (choice(TOPIC_ORDERS), "the order; all but name have one page, of the first topics of the last count"),
    },
    "listDeliveries": {
        "limit": (integer(1, MAX_SHOWN_DELIVERIES), "the number of deliveries"),
        "outcome": (choice(OUTCOMES), "only those with this outcome"),
        "topic": (TOPIC, "only those of this topic"),
    },
}
"""The parameters of an operation, by its id, that others have not, or that take other values there."""
_PARAMETER = re.compile(r"{(\w+)}")


class DescribedRoute(NamedTuple):
    """The part of an operation that its route defines: the parameters of its query, and the scopes that it asks for.

    `needs_key` is true if it asks for a key, whatever its scopes are.
    """

    query: Sequence[str]
    scopes: Sequence[Scope]
    needs_key: bool


def build_document(routes: Mapping[tuple[str, str], DescribedRoute], base_path: str = "") -> dict[str, Any]:
    """Return the description of the operations that have a route, by method and path."""
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for operation in OPERATIONS:
        route = routes.get((operation.method, operation.path))
        if route is not None:
            paths[operation.path][operation.method.lower()] = _operation_object(operation, route)
    answers = _problem_answers(paths)
    webhooks = {
        "delivery": {"post": callback_operation("deliverTask")},
        "event": {"post": event_operation("tellOperators")},
    }
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "later",
            "version": __version__,
            "summary": "A daemon that remembers an HTTP call and makes it when it is due.",
            "description": (
                "Every error is a problem document (RFC 9457); its `type` is a page that the daemon serves. "
                "Answers may get further fields. Below `/v2` the daemon speaks version 2 of the API of OpenStack "
                "Zaqar, too, which has its own description."
            ),
        },
        "servers": [{"url": f"{base_path}/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "webhooks": webhooks,
        "components": {
            "schemas": _used_schemas(answers, paths),
            "responses": answers,
            "securitySchemes": {
                KEY: {"type": "http", "scheme": "bearer", "description": "An API key, if the daemon has keys."}
            },
        },
    }


def _used_schemas(answers: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Schema]:
    """Return the schemas to which answers and paths refer, and those to which these refer."""
    schemas = {**request_schemas(), **answer_schemas()}
    used: dict[str, Schema] = {}
    found = _references([answers, paths], "schemas")
    while found:
        used |= {name: schemas[name] for name in found}
        found = {name for schema in used.values() for name in _references(schema, "schemas")} - used.keys()
    return {name: schema for name, schema in schemas.items() if name in used}


def _references(part: Any, kind: str) -> set[str]:
    """Return the names of the components of a kind to which a part of the document refers."""
    if isinstance(part, dict):
        target = part.get("$ref")
        found = {target.rpartition("/")[2]} if isinstance(target, str) and f"/{kind}/" in target else set()
        return found.union(*(_references(each, kind) for each in part.values()))
    return set().union(*(_references(each, kind) for each in part)) if isinstance(part, list) else set()


def _operation_object(operation: Operation, route: DescribedRoute) -> dict[str, Any]:
    """Return the operation object of OpenAPI."""
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "security": [{KEY: [scope.value for scope in route.scopes]}, {}] if route.needs_key else [],
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation, route.query)],
        "responses": {**_success(operation), **_problem_responses(_problems(operation, route))},
    }
    if operation.answer == TEXT and described["parameters"]:
        described["responses"]["404"] = {"description": "There is no such page."}
    if operation.request:
        described["requestBody"] = _request_body(operation)
    if operation.id == "createTask":
        described["responses"]["200"]["links"] = {
            next: {"operationId": next, "requestBody": {"id": "$response.body#/id", **more}}
            for next, more in _AFTER_A_CREATE.items()
        }
        described["callbacks"] = {
            "delivery": {"{$request.body#/callback}": {"post": callback_operation("deliverCreatedTask")}}
        }
    return described


_AFTER_A_CREATE: Mapping[str, Mapping[str, Any]] = {
    "queryTask": {},
    "updateTask": {"delay": 60},
    "runTaskNow": {},
    "deleteTask": {},
}
"""The operations to which the answer of a create leads, each with its fields beside the id."""


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
        for name in _PARAMETER.findall(path)
    ]


def _query_parameters(operation: Operation, names: Iterable[str]) -> list[dict[str, Any]]:
    known = {**QUERY_PARAMETERS, **OWN_QUERY_PARAMETERS.get(operation.id, {})}
    found = ((name, *known[name]) for name in names)
    return [{"name": name, "in": "query", "description": text, "schema": schema} for name, schema, text in found]


def _request_body(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": reference(operation.request)}}
    if operation.example is not None:
        content[JSON]["example"] = operation.example
    body: dict[str, Any] = {"required": not operation.may_lack_body, "content": content}
    if operation.takes_lines:  # in words: generators of clients leave out operations with two kinds of bodies
        body["description"] = f"Also taken: the items as lines of JSON, with `Content-Type: {NDJSON}`."
    return body


def _success(operation: Operation) -> dict[str, Any]:
    if not operation.answer:
        return {"204": {"description": "Done. The answer has no body."}}
    if operation.answer == TEXT:
        return {"200": {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    return {"200": {"description": "Done.", "content": {JSON: {"schema": reference(operation.answer)}}}}


def _problems(operation: Operation, route: DescribedRoute) -> list[ProblemType]:
    """Return the types of problems that an operation answers: its own, and those of every one of its kind."""
    common = [REFUSED, CROSS_SITE, FAULT]
    if operation.tag != "daemon":
        common.append(STORE_AWAY)
    if route.needs_key:
        common += [NO_KEY, NOT_ALLOWED, TOO_OFTEN]
    if operation.request:
        common += [SLOW_BODY, TOO_LARGE, UNSUPPORTED]
    wanted = {type.name for type in (*operation.problems, *common)}
    return [type for type in PROBLEM_TYPES.values() if type.name in wanted]


def _problem_responses(types: Sequence[ProblemType]) -> dict[str, Any]:
    """Return the answers that report problems, by their statuses: references to what `_problem_answers` returns."""
    return {
        str(status): {"$ref": f"#/components/responses/{_answer_name(found)}"}
        for status, found in _by_status(types).items()
    }


def _problem_answers(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers that report one or more types of problems, and to which paths refer, by their names."""
    return {
        name: _problem_answer([PROBLEM_TYPES[each] for each in name.split(".")])
        for name in sorted(_references(paths, "responses"))
    }


def _problem_answer(types: Sequence[ProblemType]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": " ".join(f"{type.title} (`{type.reference}`)." for type in types),
        "content": {PROBLEM: {"schema": reference("Problem")}},
    }
    return answer | {"headers": _RETRY_AFTER} if types[0].status in (429, 503) else answer


def _answer_name(types: Sequence[ProblemType]) -> str:
    return ".".join(type.name for type in types)


def _by_status(types: Sequence[ProblemType]) -> dict[int, list[ProblemType]]:
    found: dict[int, list[ProblemType]] = defaultdict(list)
    for type in sorted(types, key=lambda type: type.status):
        found[type.status].append(type)
    return found


_RETRY_AFTER = {"Retry-After": {"description": "seconds until it may be sent again", "schema": integer(0)}}
