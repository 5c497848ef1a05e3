"""The description of the API: every route, every field, and examples that are answered as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from openapi_spec_validator import OpenAPIV31SpecValidator

from later import __version__
from later.api.description.operation import TEXT, Operation
from later.api.description.operations import OPERATIONS, TAGS
from later.api.problem_types import PROBLEM_TYPES
from later.api.routes import ROUTES
from later.core.operator_event import EventType
from later.core.signing import Master
from scripts.describe_api import DOCS, json_text, markdown_text
from tests.api.api_fixture import ApiFixture, create_bodies

EXPLAINED_TASK = next(operation for operation in OPERATIONS if operation.id == "explain")._replace(
    example={"id": "dead-1"}
)


async def read_document(api: ApiFixture) -> dict[str, Any]:
    status, document = await api.get("/openapi.json")
    assert status == 200
    assert isinstance(document, dict)
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the method, path and object of each operation."""
    for path, methods in document["paths"].items():
        for method in methods:
            yield method.upper(), path, methods[method]


def validator(document: dict[str, Any], component: str) -> Draft202012Validator:
    """Return a validator of a component that also refuses properties which the description does not name."""
    strict = msgspec.json.decode(msgspec.json.encode(document["components"]["schemas"]))
    for schema in strict.values():
        close(schema)
    return Draft202012Validator({"$ref": f"#/components/schemas/{component}", "components": {"schemas": strict}})


def close(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "object" and schema.get("properties"):
            schema.setdefault("additionalProperties", False)
        for part in schema.values():
            close(part)
    elif isinstance(schema, list):
        for part in schema:
            close(part)


async def prepare(api: ApiFixture) -> None:
    """Create what the examples speak of."""
    api.store.signing.use_masters([Master(bytes(32))])
    for body in ({"id": "order-7", "delay": 3600}, {"id": "dead-1"}):
        assert (await api.post("/create", {**create_bodies("x")[0], **body}))[0] == 200
    assert (await api.request("PATCH", "/topics/thumbnails/policy", {"deliver": "pull"}))[0] == 200
    schedule = {"every": 60, "topic": "report", "callback": "http://127.0.0.1:8888/report", "headers": {"x-a": "b"}}
    assert (await api.request("PUT", "/schedules/report", schedule))[0] == 200
    assert (await api.post("/create", {"topic": "thumbnails", "content": "cat.jpg", "headers": {"x-a": "b"}}))[0] == 200


async def test_every_route_is_described_and_nothing_else(api: ApiFixture) -> None:
    described = {(method, path) for method, path, _ in operations(await read_document(api))}
    own = {(route.method, route.template) for route in api.http.app[ROUTES] if not (route.is_zaqar or route.is_page)}
    assert described == own
    of_the_clock = {("GET", "/dev/clock"), ("POST", "/dev/clock")}
    assert {(operation.method, operation.path) for operation in OPERATIONS} == own | of_the_clock


async def test_the_documented_events_for_operators_are_as_described(api: ApiFixture) -> None:
    event = (await read_document(api))["webhooks"]["event"]["post"]
    schema = event["requestBody"]["content"]["application/json"]["schema"]
    close(schema)
    examples = [
        msgspec.json.decode(text)
        for text in re.findall(r"```json\n(.*?)```", (DOCS / "events.md").read_text(), re.DOTALL)
    ]
    assert [example["type"] for example in examples] == [*EventType]
    assert [error.message for example in examples for error in Draft202012Validator(schema).iter_errors(example)] == []


async def test_the_document_is_valid_and_names_its_version(api: ApiFixture) -> None:
    document = await read_document(api)
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["version"] == __version__
    assert {operation.tag for operation in OPERATIONS} == {*TAGS}


async def test_every_component_is_used(api: ApiFixture) -> None:
    document = await read_document(api)
    text = msgspec.json.encode(document).decode()
    unused = {name for name in document["components"]["schemas"] if f'"#/components/schemas/{name}"' not in text}
    assert not unused


async def test_every_operation_has_an_example_that_is_answered_as_described(api: ApiFixture) -> None:
    document = await read_document(api)
    for operation in [each for each in OPERATIONS if each.tag != "clock" and each.id != "signIn"]:
        await api.redis.flushall()
        await prepare(api)
        if operation.id == "showJob":
            await api.post("/create/batch?job=import-1", create_bodies("a"))
        await check_example(api, document, operation)
    await check_example(api, document, EXPLAINED_TASK)


async def check_example(api: ApiFixture, document: dict[str, Any], operation: Operation) -> None:
    if operation.request:
        validator(document, operation.request).validate(operation.example or {})
    if operation.answer == TEXT:
        async with api.http.get(operation.sent_path) as response:
            assert (response.status, response.content_type) == (200, "text/plain"), operation
        return
    status, answer = await api.request(operation.method, operation.sent_path, operation.example)
    assert status == (200 if operation.answer else 204), (operation, answer)
    if operation.answer:
        errors = [error.message for error in validator(document, operation.answer).iter_errors(answer)]
        assert not errors, (operation.id, answer)


async def test_every_type_of_problem_is_answered_by_some_operation(api: ApiFixture) -> None:
    text = msgspec.json.encode(await read_document(api)).decode()
    assert {name for name in PROBLEM_TYPES if f"`/problems/{name}`" not in text} == set()


async def test_a_copy_that_is_the_same_is_not_sent_again(api: ApiFixture) -> None:
    async with api.http.get("/openapi.json") as first:
        etag = first.headers["ETag"]
    for known in (etag, f'"other", W/{etag}', "*"):
        async with api.http.get("/openapi.json", headers={"If-None-Match": known}) as second:
            assert (second.status, await second.read()) == (304, b"")
    async with api.http.get("/openapi.json", headers={"If-None-Match": '"other"'}) as third:
        assert third.status == 200


async def test_the_description_in_the_docs_is_the_one_that_is_served(api: ApiFixture) -> None:
    document = await read_document(api)
    advice = "start a daemon, and run `python -m scripts.describe_api URL`"
    assert (DOCS / "openapi.json").read_text() == json_text(document), advice
    assert (DOCS / "api.md").read_text() == markdown_text(document), advice
