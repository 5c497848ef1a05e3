"""The rules of every request of Zaqar's API: what each refuses, and in which order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from later.api.zaqar.error_answers import ZaqarError
from later.api.zaqar.protocol import accepts_json, check_names, parse_json, topic_of
from tests.api.api_fixture import ApiFixture
from tests.api.zaqar.zaqar_api import ZaqarApi
from tests.cases import each_case

MESSAGES = "/v2/queues/{queue}/messages"
POST = {"messages": [{"body": "hello", "ttl": 60}]}
INVALID_QUEUE = (
    400, "Invalid queue identification", "The format of the submitted queue name or project id is not valid.",
)  # fmt: skip
NO_PROJECT = (400, "Project-Id Missing", "The header X-PROJECT-ID was missing")
NO_CLIENT = (400, "Missing header value", 'The "Client-Id" header is required.')
NOT_ACCEPTABLE = (
    406, "406 Not Acceptable",
    'Endpoint only serves `application/json`; specify client-side media type support with the "Accept" header.',
)  # fmt: skip
FORM = (
    400, "Invalid Content-Type",
    "Endpoint does not accept `application/x-www-form-urlencoded` content; currently supported media type is "
    '`application/json`; specify proper client-side media type with the "Content-Type" header.',
)  # fmt: skip
FORM_TYPE = "application/x-www-form-urlencoded"
IN_ORDER: list[tuple[dict[str, str | None], tuple[int, str, str]]] = [
    ({"Content-Type": FORM_TYPE}, FORM),
    ({"Accept": "application/xml"}, NOT_ACCEPTABLE),
    ({"Client-ID": None}, NO_CLIENT),
    ({"X-Project-Id": None}, NO_PROJECT),
]
"""Headers that break a rule, and the answer, in the order of the rules."""


async def test_the_rules_are_checked_in_their_order(zaqar: ZaqarApi) -> None:
    path = MESSAGES.format(queue="a%20b")
    for number, (_, expected) in enumerate(IN_ORDER):
        broken = {name: value for headers, _ in IN_ORDER[number:] for name, value in headers.items()}
        assert await zaqar.error("POST", path, b"not JSON", headers=broken) == expected
    assert await zaqar.error("POST", path, b"not JSON") == INVALID_QUEUE
    path = MESSAGES.format(queue="jobs")
    malformed = (400, "Invalid request body", "Request body could not be parsed.")
    assert await zaqar.error("POST", path, b"not JSON") == malformed


async def test_the_rules_hold_where_no_queue_is_named(zaqar: ZaqarApi) -> None:
    for headers, expected in IN_ORDER[1:]:
        for path in ("/v2/", "/v2/ping", "/v2/health", "/v2/queues"):
            assert await zaqar.error("GET", path, headers=headers) == expected


@each_case("content_type", [FORM_TYPE, FORM_TYPE.upper(), f"{FORM_TYPE}; charset=UTF-8"])
async def test_a_form_is_refused_only_if_there_is_one(zaqar: ZaqarApi, content_type: str) -> None:
    headers: dict[str, str | None] = {"Content-Type": content_type}
    assert await zaqar.error("POST", MESSAGES.format(queue="jobs"), b"a=b", headers=headers) == FORM
    assert (await zaqar.call("PUT", "/v2/queues/jobs", headers=headers)).status in (201, 204)
    assert (await zaqar.call("PUT", "/v2/queues/jobs", b"", headers=headers)).status == 204


@each_case(
    ("accept", "expected"),
    [
        ("*/*", True),
        ("application/json", True),
        ("APPLICATION/JSON ; charset=utf-8", True),
        ("text/html, application/*;q=0.5", True),
        ("", True),
        ("text/html, */*;q=0.1", True),
        ("application/xml", False),
        ("text/*", False),
        ("application/json;q=0, */*", False),
        ("application/*;q=0.0", False),
        ("application/json;q=x", False),
        ("garbage", False),
        (";;,,", False),
    ],
)
def test_the_most_specific_media_range_says_whether_json_is_taken(accept: str, expected: bool) -> None:
    assert accepts_json(accept) is expected


async def test_a_client_id_is_a_uuid_with_dashes_or_without(zaqar: ZaqarApi) -> None:
    wrong = (400, "Wrong UUID value", "Malformed hexadecimal UUID.")
    for client_id in ("3381af922b9e11e3b19171861300734c", "3381af92-2b9e-11e3-b191-71861300734C"):
        assert (await zaqar.call("GET", "/v2/ping", headers={"Client-ID": client_id})).status == 204
    for client_id in ("", "x", "3381af922b9e11e3b19171861300734", "3381af922b9e11e3b19171861300734cc", "1" * 33):
        assert await zaqar.error("GET", "/v2/ping", headers={"Client-ID": client_id}) == wrong


async def test_a_project_is_named_once_and_is_not_empty(zaqar: ZaqarApi) -> None:
    empty = (
        400, "Empty project header not allowed",
        "X-PROJECT-ID cannot be an empty string. Specify the right header X-PROJECT-ID and retry.",
    )  # fmt: skip
    assert await zaqar.error("GET", "/v2/ping", headers={"X-Project-Id": ""}) == empty
    headers = [*zaqar.headers.items(), ("X-Project-Id", "other")]
    async with zaqar.api.http.get("/v2/ping", headers=headers) as answer:
        body = await answer.json()
        assert (answer.status, body["title"], body["description"]) == INVALID_QUEUE


@each_case(
    ("project", "queue"),
    [
        ("480924", "jobs"),
        ("p", "a" * 64),
        ("8383830383abc_", "Service.test_queue-1"),
        ("x" * 253, "q"),
        ("ü" * 95, "a" * 64),
        ("default", "q"),
        ("a project, with more", "q"),
        ("p", None),
    ],
)
def test_names_that_are_taken(project: str, queue: str | None) -> None:
    check_names(project, queue)


@each_case(
    ("project", "queue"),
    [
        ("p", ""),
        ("p", "a" * 65),
        ("p", "Nice-Bo@t"),
        ("p", "a/b"),
        ("p", "a\n"),
        ("p", "ü"),
        ("a/b", "q"),
        ("/", None),
        ("a\x7f", "q"),
        ("\udcff", "q"),
        ("x" * 257, None),
        ("x" * 254, "q"),
        ("ü" * 96, "a" * 64),
        ("later", "q"),
        ("later", None),
    ],
)
def test_names_that_are_refused(project: str, queue: str | None) -> None:
    with pytest.raises(ZaqarError) as error:
        check_names(project, queue)
    assert (error.value.status, error.value.title) == INVALID_QUEUE[:2]
    assert project == "later" or error.value.description == INVALID_QUEUE[2]


async def test_a_project_may_be_written_in_any_script(api: ApiFixture) -> None:
    zaqar = ZaqarApi(api, project="Zürich, {west} & 東京")
    assert (await zaqar.call("POST", MESSAGES.format(queue="jobs"), POST)).status == 201
    [queue] = (await zaqar.call("GET", "/v2/queues")).body["queues"]
    [message] = (await zaqar.call("POST", "/v2/queues/jobs/claims")).body["messages"]
    assert (queue["name"], message["body"]) == ("jobs", "hello")
    assert (await zaqar.call("DELETE", message["href"])).status == 204
    assert (await api.get("/topics?namespace=Z%C3%BCrich%2C%20%7Bwest%7D%20%26%20%E6%9D%B1%E4%BA%AC"))[1]["topics"]


def test_the_topic_of_a_queue_is_in_the_namespace_of_its_project() -> None:
    assert topic_of("shop", "jobs") == "shop/jobs"
    assert topic_of("default", "jobs") == "jobs"


@each_case(
    ("body", "document"),
    [
        (b"{}", {}),
        (b" [1, 2.5, null, true]\n", [1, 2.5, None, True]),
        (b'{"a": 9223372036854775807, "b": -9223372036854775808}', {"a": 2**63 - 1, "b": -(2**63)}),
        (b'{"a": "92233720368547758070"}', {"a": "92233720368547758070"}),
        (b'{"a": 1234567890123456789012.5}', {"a": 1234567890123456789012.5}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        ('{"ü": "\\u00fc"}'.encode(), {"ü": "ü"}),
    ],
)
def test_an_object_or_an_array_is_a_document(body: bytes, document: object) -> None:
    assert parse_json(body) == document


@each_case("body", [b"1", b'"x"', b"null", b"{", b'{"a": NaN}', b"\xff", b" ", b"[" * 100_000, b'{"a": "\\ud800"}'])
def test_what_is_no_document_is_refused(body: bytes) -> None:
    with pytest.raises(ZaqarError, match="Request body could not be parsed"):
        parse_json(body)


@each_case("number", [2**63, -(2**63) - 1, 10**19, 10**30, int("9" * 4000)])
@each_case("template", ['{"messages": [{"body": %s, "ttl": 60}]}', "[%s]"])
def test_an_integer_beyond_64_bits_is_refused(template: str, number: int) -> None:
    with pytest.raises(ZaqarError, match="JSON contains integer that is too large"):
        parse_json((template % number).encode())


def test_an_integer_that_python_would_not_read_is_too_large() -> None:
    with pytest.raises(ZaqarError, match="JSON contains integer that is too large"):
        parse_json(b"[" + b"9" * 10_000 + b"]")


async def test_a_path_with_a_percent_sign_is_the_same_path(zaqar: ZaqarApi) -> None:
    assert (await zaqar.call("GET", "/v%32/pin%67")).status == 204
    assert await zaqar.error("GET", "/v2/queues/a%2Fb") == INVALID_QUEUE


async def test_parameters_that_zaqar_does_not_know_are_ignored(zaqar: ZaqarApi) -> None:
    assert (await zaqar.call("GET", "/v2/ping?x=1&x=2&%ff=3")).status == 204


async def test_every_route_is_listed(api: ApiFixture) -> None:
    _, answer = await api.get("/")
    listed = {(route["method"], route["path"]) for route in answer["routes"] if route["path"].startswith("/v2")}
    queue = "/v2/queues/{queue}"
    assert listed == {
        ("GET", "/v2/"), ("GET", "/v2/ping"), ("GET", "/v2/health"), ("GET", "/v2/queues"),
        *((method, queue) for method in ("GET", "PUT", "PATCH", "DELETE")),
        ("GET", f"{queue}/stats"), ("POST", f"{queue}/purge"),
        *((method, f"{queue}/messages") for method in ("GET", "POST", "DELETE")),
        *((method, f"{queue}/messages/{{message}}") for method in ("GET", "DELETE")),
        ("POST", f"{queue}/claims"),
        *((method, f"{queue}/claims/{{claim}}") for method in ("GET", "PATCH", "DELETE")),
    }  # fmt: skip


async def test_requests_are_counted_by_the_template_of_their_route(zaqar: ZaqarApi) -> None:
    await zaqar.call("PUT", "/v2/queues/jobs")
    await zaqar.call("GET", "/v2/queues/jobs")
    await zaqar.call("GET", "/v2/queues/jobs/messages/none")
    await zaqar.call("GET", "/v2/nowhere/jobs")
    value: Any = zaqar.api.metrics.registry.get_sample_value
    counts = {
        (route, code): value("later_http_requests_total", {"route": route, "code": code})
        for route, code in (
            ("/v2/queues/{queue}", "201"),
            ("/v2/queues/{queue}", "200"),
            ("/v2/queues/{queue}/messages/{message}", "404"),
            ("other", "404"),
        )
    }
    assert set(counts.values()) == {1}, json.dumps([*counts.items()])


@each_case(
    "method, path",
    [
        (method, path.replace("?", text))
        for method, path in (
            ("GET", "/v2/queues/q/claims/?"), ("PATCH", "/v2/queues/q/claims/?"), ("DELETE", "/v2/queues/q/claims/?"),
            ("GET", "/v2/queues/q/messages/?"), ("DELETE", "/v2/queues/q/messages/?"), ("GET", "/v2/?"),
        )
        for text in ("%ED%A0%80", "%FF", "%00", "%F0%9F%98%80", "a%2Fb")
    ],
)  # fmt: skip
async def test_odd_bytes_in_a_path_are_no_fault(zaqar: ZaqarApi, method: str, path: str) -> None:
    answer = await zaqar.call(method, path, {"ttl": 60} if method == "PATCH" else None)
    assert answer.status in (204, 400, 404), answer


@each_case("text", ["%ED%A0%80", "%FF", "%00", "%F0%9F%98%80", "%2F", "%C3%A4%2F"])
async def test_odd_bytes_in_a_query_are_no_fault(zaqar: ZaqarApi, text: str) -> None:
    await zaqar.call("PUT", "/v2/queues/q")
    for path in ("/v2/queues?", "/v2/queues/q/messages?"):
        for name in ("marker", "ids", "limit", "detailed", "name", "echo", "claim_id", "pop", text):
            answer = await zaqar.call("GET", f"{path}{name}={text}")
            assert answer.status in (200, 400, 404), (path, name, answer)
