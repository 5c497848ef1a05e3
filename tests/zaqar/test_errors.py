"""Refusals of the API of Zaqar, word for word: its clients show these sentences to people."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.cases import each_case
from tests.system.daemons import Daemon
from tests.zaqar.clients import claim, make_queue, post
from tests.zaqar.exchange import exchange

if TYPE_CHECKING:
    from zaqarclient.queues.v2.client import Client

CLIENT_ID = uuid.uuid4().hex
QUEUE = "/v2/queues/jobs"
DELAYED = "/v2/queues/delayed"
SMALL = "/v2/queues/small"
TOO_LARGE_INTEGER = 9223372036854775808

API = "Invalid API request"
BODY = "Invalid request body"
PARAMETER = "Invalid parameter"
IDENTIFICATION = "Invalid queue identification"
MALFORMED_IDENTIFICATION = "The format of the submitted queue name or project id is not valid."
MESSAGE_TTL = "The TTL for a message may not exceed 1209600 seconds, and must be at least 60 seconds long."
MESSAGE_DELAY = "The Delay TTL for a message may not exceed 900 seconds,and must be at least 0 seconds long."
QUEUE_DELAY = "The TTL can not exceed 900 seconds, and must be at least 0 seconds long."
CLAIM_TTL = "The TTL for a claim may not exceed 43200 seconds, and must be at least 60 seconds long."
CLAIM_GRACE = "The grace for a claim may not exceed 43200 seconds, and must be at least 60 seconds long."
DELAY_TYPE = 'The value of the "delay" field must be a int.'
LIMIT = "Limit must be at least 1 and may not be greater than 20."
IDS = "ids parameter should have at least 1 and not greater than 20 values."
MISSING_MESSAGE = "Message none does not exist in queue nowhere for project {project}"
MISSING_MESSAGES = "No messages with IDs: ['a', 'b'] found in the queue nowhere for project {project}."
MISSING_CLAIM = "Claim none does not exist in queue nowhere for project {project}"
QUEUES_LIMIT = "Limit must be at least 1 and no greater than 20."


class Refusal(NamedTuple):
    """How a request is refused."""

    status: int
    title: str
    description: str


@pytest.fixture(scope="module")
def project_of_module() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def project(project_of_module: str) -> str:
    """The project of all tests of this module, in which nothing changes: each is refused."""
    return project_of_module


@pytest.fixture
def queues(client: Client) -> Iterator[None]:
    """The queues that the requests name."""
    make_queue(client)
    make_queue(client, "delayed", _default_message_delay=10)
    make_queue(client, "small", _max_messages_post_size=100)
    yield
    for name in ("jobs", "delayed", "small"):
        assert client.queue(name).stats["messages"]["total"] == 0, "something was stored"


def send(
    daemon: Daemon, project: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> Refusal:
    """Send a request and return its answer, which has a title, a description and nothing else."""
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    usual = {"Client-ID": CLIENT_ID, "X-Project-Id": project, "Content-Type": "application/json"}
    merged = usual | (headers or {})
    given = {name: value for name, value in merged.items() if value != "absent"}
    answer = exchange(daemon.url, method, path, content, given)
    assert dict(answer.headers)["Content-Type"].startswith("application/json"), answer
    refusal = json.loads(answer.body)
    assert set(refusal) == {"title", "description"}, answer
    return Refusal(answer.status, refusal["title"], refusal["description"])


@each_case(
    "headers, path, expected",
    [
        (
            {"Content-Type": "application/x-www-form-urlencoded"},
            QUEUE,
            Refusal(
                400,
                "Invalid Content-Type",
                "Endpoint does not accept `application/x-www-form-urlencoded` content; currently supported media type "
                'is `application/json`; specify proper client-side media type with the "Content-Type" header.',
            ),
        ),
        (
            {"Accept": "application/xml"},
            QUEUE,
            Refusal(
                406,
                "406 Not Acceptable",
                "Endpoint only serves `application/json`; specify client-side media type support with the "
                '"Accept" header.',
            ),
        ),
        (
            {"Client-ID": "absent"},
            QUEUE,
            Refusal(400, "Missing header value", 'The "Client-Id" header is required.'),
        ),
        ({"Client-ID": "me"}, QUEUE, Refusal(400, "Wrong UUID value", "Malformed hexadecimal UUID.")),
        (
            {"X-Project-Id": ""},
            QUEUE,
            Refusal(
                400,
                "Empty project header not allowed",
                "X-PROJECT-ID cannot be an empty string. Specify the right header X-PROJECT-ID and retry.",
            ),
        ),
        (
            {"X-Project-Id": "absent"},
            QUEUE,
            Refusal(400, "Project-Id Missing", "The header X-PROJECT-ID was missing"),
        ),
        ({"X-Project-Id": "a/b"}, QUEUE, Refusal(400, IDENTIFICATION, MALFORMED_IDENTIFICATION)),
        ({"X-Project-Id": "p" * 257}, QUEUE, Refusal(400, IDENTIFICATION, MALFORMED_IDENTIFICATION)),
        ({}, "/v2/queues/no@queue", Refusal(400, IDENTIFICATION, MALFORMED_IDENTIFICATION)),
        ({}, f"/v2/queues/{'q' * 65}", Refusal(400, IDENTIFICATION, MALFORMED_IDENTIFICATION)),
        ({}, "/v2/queues/sch%C3%B6n", Refusal(400, IDENTIFICATION, MALFORMED_IDENTIFICATION)),
        ({}, "/v2/queues/a%20b", Refusal(400, IDENTIFICATION, MALFORMED_IDENTIFICATION)),
    ],
)
def test_a_request_is_refused_by_its_headers_or_its_path(
    daemon: Daemon, project: str, headers: dict[str, str], path: str, expected: Refusal
) -> None:
    body = {"messages": [{"body": "x"}]}
    assert send(daemon, project, "POST", f"{path}/messages", body, headers) == expected


def one(**fields: Any) -> dict[str, Any]:
    """Return a post of one message with these fields."""
    return {"messages": [fields]}


@pytest.mark.usefixtures("queues")
@each_case(
    "path, body, title, description",
    [
        (QUEUE, b"{", BODY, "Request body could not be parsed."),
        (QUEUE, one(body=TOO_LARGE_INTEGER), BODY, "JSON contains integer that is too large."),
        (QUEUE, one(body=-TOO_LARGE_INTEGER - 1), BODY, "JSON contains integer that is too large."),
        (QUEUE, {}, API, "No messages were found in the request body."),
        (QUEUE, [], API, "No messages were found in the request body."),
        (QUEUE, {"messages": []}, API, "No messages to enqueu."),
        (QUEUE, {"messages": {}}, BODY, "Document type not supported."),
        (QUEUE, one(ttl=60), BODY, 'Missing "body" field.'),
        (QUEUE, one(body=1, ttl="60"), BODY, 'The value of the "ttl" field must be a int.'),
        (QUEUE, one(body=1, ttl=59), API, MESSAGE_TTL),
        (QUEUE, one(body=1, ttl=1209601), API, MESSAGE_TTL),
        (QUEUE, {"messages": [{"body": 1}, {"body": 2, "ttl": 59}]}, API, MESSAGE_TTL),
        (QUEUE, b" " * 262145, API, "Message collection size is too large. Max size 262144"),
        (
            SMALL,
            one(body="x" * 100),
            API,
            "Message collection size is too large. The max size for current queue is 100. It is calculated by max "
            "size = min(max_messages_post_size_config: 262144, max_messages_post_size_queue: 100).",
        ),
        *((path, one(body=1, delay=delay), API, MESSAGE_DELAY) for path in (QUEUE, DELAYED) for delay in (-1, 901)),
        *(
            (path, one(body=1, delay=delay), BODY, DELAY_TYPE)
            for path in (QUEUE, DELAYED)
            for delay in ("5", 5.5, None, True)
        ),
        (DELAYED, {"messages": [{"body": 1}, {"body": 2, "delay": 901}]}, API, MESSAGE_DELAY),
    ],
)
def test_a_post_of_messages_is_refused_and_nothing_is_stored(
    daemon: Daemon, project: str, path: str, body: object, title: str, description: str
) -> None:
    assert send(daemon, project, "POST", f"{path}/messages", body) == (400, title, description)


@pytest.mark.usefixtures("queues")
@each_case(
    "method, query, title, description",
    [
        ("GET", "limit=0", API, LIMIT),
        ("GET", "limit=21", API, LIMIT),
        ("GET", "ids=" + ",".join(["a"] * 21), API, LIMIT),
        ("GET", "limit=x", PARAMETER, 'The "limit" parameter is invalid. The value must be an integer.'),
        *(
            (
                "GET",
                f"{name}=maybe",
                PARAMETER,
                f'The "{name}" parameter is invalid. The value of the parameter must be "true" or "false".',
            )
            for name in ("echo", "include_claimed", "include_delayed")
        ),
        (
            "DELETE",
            "",
            API,
            'The request should have either "ids" or "pop" parameter in the request, to be able to delete.',
        ),
        ("DELETE", "pop=1&ids=a", API, "pop and id params cannot be present together in the delete request."),
        ("DELETE", "pop=0", API, "Pop value must be at least 1 and may not be greater than 20."),
        ("DELETE", "pop=21", API, "Pop value must be at least 1 and may not be greater than 20."),
        ("DELETE", "ids=" + ",".join("a" * 21), API, IDS),
    ],
)  # fmt: skip
def test_a_query_of_messages_is_refused(
    daemon: Daemon, project: str, method: str, query: str, title: str, description: str
) -> None:
    assert send(daemon, project, method, f"{QUEUE}/messages?{query}") == (400, title, description)


@pytest.mark.usefixtures("queues")
@each_case(
    "query, body, title, description",
    [
        ("", {"ttl": 59}, API, CLAIM_TTL),
        ("", {"ttl": 43201}, API, CLAIM_TTL),
        ("", {"grace": 59}, API, CLAIM_GRACE),
        ("", {"grace": 43201}, API, CLAIM_GRACE),
        ("", {"ttl": "60"}, BODY, 'The value of the "ttl" field must be a int.'),
        ("", {"ttl": 60, "grace": 60.5}, BODY, 'The value of the "grace" field must be a int.'),
        ("", [], BODY, "Document type not supported."),
        ("", b"[", BODY, "Request body could not be parsed."),
        ("limit=0", {}, API, LIMIT),
        ("limit=21", {}, API, LIMIT),
    ],
)
def test_a_claim_is_refused(
    daemon: Daemon, project: str, query: str, body: object, title: str, description: str
) -> None:
    assert send(daemon, project, "POST", f"{QUEUE}/claims?{query}", body) == (400, title, description)


@pytest.mark.usefixtures("queues")
@each_case(
    "metadata, description",
    [
        ({"_default_message_delay": 901}, QUEUE_DELAY),
        ({"_default_message_delay": -1}, QUEUE_DELAY),
        ({"_default_message_delay": "5"}, "_default_message_delay must be integer."),
        ({"_default_message_delay": 5.5}, "_default_message_delay must be integer."),
        (
            {"_default_message_ttl": 59},
            "_default_message_ttl can not exceed 1209600 seconds, and must be at least 60 seconds long.",
        ),
        ({"_default_message_ttl": "60"}, "_default_message_ttl must be integer."),
        (
            {"_max_messages_post_size": 262145},
            "_max_messages_post_size can not exceed 262144,  and must be at least greater than 0.",
        ),
        ({"_max_messages_post_size": "1"}, "_max_messages_post_size must be integer."),
        ({"_max_claim_count": "3"}, "_max_claim_count must be integer."),
        ({"_dead_letter_queue_messages_ttl": "60"}, "_dead_letter_queue_messages_ttl must be integer."),
        ({"_dead_letter_queue_messages_ttl": 59}, MESSAGE_TTL),
        ({"_enable_encrypt_messages": "yes"}, "_enable_encrypt_messages must be boolean."),
        ({"_retry_policy": 1}, "retry_policy must be a dict."),
        ({"_retry_policy": {"retry_backoff_function": "no"}}, "invalid retry_backoff_function."),
        ({"_retry_policy": {"minimum_delay": "5"}}, "Retry policy: minimum_delay must be a integer."),
    ],
)
def test_metadata_are_refused_alike_when_a_queue_is_made_and_when_they_are_changed(
    daemon: Daemon, project: str, metadata: dict[str, object], description: str
) -> None:
    patch_type = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
    ((name, value),) = metadata.items()
    changes = [{"op": "add", "path": f"/metadata/{name}", "value": value}]
    assert send(daemon, project, "PUT", QUEUE, metadata) == (400, API, description)
    assert send(daemon, project, "PATCH", QUEUE, changes, patch_type) == (400, BODY, description)


@pytest.mark.usefixtures("queues")
@each_case(
    "change, status, title, description",
    [
        (
            {"path": "/metadata/a", "value": 1}, 400, BODY,
            "Unable to find `op` in JSON Schema change. It must be one of the following: add, remove, replace.",
        ),
        (
            {"op": "move", "path": "/metadata/a", "value": 1}, 400, BODY,
            "Invalid operation: `move`. It must be one of the following: add, remove, replace.",
        ),
        ({"op": "add", "value": 1}, 400, BODY, "Unable to find 'path' in JSON Schema change"),
        ({"op": "add", "path": "/metadata/a"}, 400, BODY, 'Operation "add" requires a member named "value".'),
        ({"op": "add", "path": "metadata/a", "value": 1}, 400, BODY, 'Pointer `metadata/a` does not start with "/".'),
        (
            {"op": "add", "path": "/a", "value": 1}, 400, BODY,
            "Invalid JSON pointer for this resource: '/a, e.g /metadata/key'",
        ),
        (
            {"op": "add", "path": "/other/a", "value": 1}, 400, BODY,
            "The root of path must be metadata, e.g /metadata/key.",
        ),
        ("add", 400, BODY, "Operations must be JSON objects."),
        (
            {"op": "replace", "path": "/metadata/a", "value": 1}, 409, "Resource conflict",
            "Can't replace non-existent object a.",
        ),
        (
            {"op": "remove", "path": "/metadata/a"}, 409, "Resource conflict",
            "Can't remove non-existent object a.",
        ),
    ],
)  # fmt: skip
def test_a_change_of_metadata_is_refused(
    daemon: Daemon, project: str, change: object, status: int, title: str, description: str
) -> None:
    patch_type = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
    assert send(daemon, project, "PATCH", QUEUE, [change], patch_type) == (status, title, description)


@each_case(
    "method, path, body, description",
    [
        ("GET", "/messages/none", None, MISSING_MESSAGE),
        ("GET", "/messages?ids=a,b", None, MISSING_MESSAGES),
        ("GET", "/messages?ids=a&ids=b", None, MISSING_MESSAGES),
        ("GET", "/claims/none", None, MISSING_CLAIM),
        ("PATCH", "/claims/none", {"ttl": 60}, MISSING_CLAIM),
    ],
)  # fmt: skip
def test_a_missing_thing_is_named(
    daemon: Daemon, project: str, method: str, path: str, body: object, description: str
) -> None:
    refusal = send(daemon, project, method, f"/v2/queues/nowhere{path}", body)
    assert refusal == (404, "Not found", description.format(project=project))


def test_a_change_of_a_missing_queue_names_it(daemon: Daemon, project: str) -> None:
    patch_type = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}
    change = [{"op": "add", "path": "/metadata/a", "value": 1}]
    refusal = send(daemon, project, "PATCH", "/v2/queues/nowhere", change, patch_type)
    assert refusal == (404, "Not found", f"Queue nowhere does not exist for project {project}")


@each_case(
    "method, path, body, title, description",
    [
        ("GET", "/v2/queues?limit=21", None, API, QUEUES_LIMIT),
        ("GET", "/v2/queues?limit=0", None, API, QUEUES_LIMIT),
        (
            "GET",
            "/v2/queues?detailed=maybe",
            None,
            PARAMETER,
            'The "detailed" parameter is invalid. The value of the parameter must be "true" or "false".',
        ),
        ("PUT", "/v2/queues/large", b" " * 65537, API, "Queue metadata is too large. Max size: 65536"),
        ("PUT", "/v2/queues/array", [], BODY, "Document type not supported."),
        ("POST", "/v2/queues/jobs/purge", {}, API, 'Post body must contain key "resource_types".'),
    ],
)
def test_a_request_about_queues_is_refused(
    daemon: Daemon, project: str, method: str, path: str, body: object, title: str, description: str
) -> None:
    assert send(daemon, project, method, path, body) == (400, title, description)


def test_a_deletion_names_a_claim_that_holds_the_message(daemon: Daemon, client: Client, project: str) -> None:
    queue = make_queue(client, "claimed")
    claimed, free = post(queue, "claimed", "free")
    held = claim(queue, limit=1).id
    refusals = {
        path: send(daemon, project, "DELETE", f"/v2/queues/claimed/messages/{path}")
        for path in (claimed, f"{claimed}?claim_id=none", f"{free}?claim_id={held}")
    }
    assert list(refusals.values()) == [
        (403, "Unable to delete", "This message is claimed; it cannot be deleted without a valid claim ID."),
        (400, "Unable to delete", "The specified claim does not exist or has expired."),
        (400, "Unable to delete", "A claim was specified, but the message is not currently claimed."),
    ]


def test_the_client_raises_the_title_and_the_description(client: Client) -> None:
    from zaqarclient.transport.errors import MalformedRequest

    with pytest.raises(MalformedRequest) as raised:
        post(make_queue(client), "x", ttl=1)
    assert str(raised.value) == f"Error response from Zaqar. Code: 400. Title: {API}. Description: {MESSAGE_TTL}."
