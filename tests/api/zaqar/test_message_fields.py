"""What a post of messages says, and how a task is shown as a message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from later.api.zaqar.error_answers import ZaqarError
from later.api.zaqar.message_fields import (
    PostedMessage,
    due_at_once,
    message_href,
    message_view,
    parse_post,
    shown_ttl_s,
)
from later.api.zaqar.query_parameters import (
    integer_parameter,
    list_parameter,
    switch_parameter,
    text_parameter,
)
from later.core.clock import Interval
from tests.builders import NOW, a_task
from tests.cases import each_case

NO_INTEGERS: list[object] = ["5", 5.5, 60.0, None, True, []]
TEXT = st.text(st.characters(codec="utf-8"))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def view(**changes: Any) -> dict[str, Any]:
    """Return a task as it is shown as a message, decoded from its JSON."""
    fields = {"href": "/v2/queues/q/messages/a", "claim_id": None, "claim_count": 0, "now": NOW, "ttl_s": 60}
    task = a_task(**{"id": "a", **changes.pop("task", {})})
    shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(message_view(task, **{**fields, **changes})))
    return shown


@given(JSON)
def test_a_body_is_shown_as_it_was_posted(body: object) -> None:
    [message] = parse_post(msgspec.json.encode({"messages": [{"body": body}]}))
    assert message.is_json is not isinstance(body, str)
    assert view(task={"content": message.content, "is_json": message.is_json})["body"] == body


def test_a_body_that_is_no_string_is_kept_as_it_was_written() -> None:
    post = b'{"messages": [{"body": {"n":  1.50, "n": [1e2]}, "ttl": 60}, {"delay": 0, "body": "a\\u00e9"}]}'
    assert parse_post(post) == [
        PostedMessage('{"n":  1.50, "n": [1e2]}', True, 60, None),
        PostedMessage("aé", False, None, 0),
    ]


def test_a_message_is_shown_with_the_fields_that_its_clients_take_and_no_other() -> None:
    assert view(task={"content": "hello"}, now=NOW + 2999, claim_count=2) == {
        "id": "a", "href": "/v2/queues/q/messages/a", "ttl": 60, "age": 2, "body": "hello", "claim_count": 2,
    }  # fmt: skip
    assert view(now=NOW - 5)["age"] == 0
    assert view(claim_id="c1")["href"] == "/v2/queues/q/messages/a?claim_id=c1"


def test_a_path_of_a_message_holds_nothing_that_a_client_takes_for_a_parameter() -> None:
    assert message_href("a.b", "team%2F/x:1~") == "/v2/queues/a.b/messages/team%252F%2Fx:1~"


@each_case("ends_at, shown", [(NOW + 60_000, 60), (NOW + 60_999, 60), (None, 1_209_600)])
def test_a_ttl_is_from_birth_to_end(ends_at: int | None, shown: int) -> None:
    assert shown_ttl_s(NOW, ends_at) == shown


def test_messages_without_a_delay_are_due_in_their_order_and_at_once_in_any_process() -> None:
    first = due_at_once(Interval(NOW, NOW + 3), 0)
    assert first == NOW - 3
    assert due_at_once(Interval(NOW - 2, NOW + 1), first) == first  # the time is known less well than before
    assert due_at_once(Interval(NOW + 10, NOW + 11), first) == NOW + 9
    assert due_at_once(Interval(NOW - 5000, NOW - 4990), first) == NOW - 5000  # the store's clock was set back


@each_case(
    "body, title, description",
    [
        (b"", "Invalid request body", "Request body can not be empty"),
        (b"[", "Invalid request body", "Request body could not be parsed."),
        (b"123", "Invalid request body", "Request body could not be parsed."),
        (b'{"a": NaN}', "Invalid request body", "Request body could not be parsed."),
        (b'{"a": 9223372036854775808}', "Invalid request body", "JSON contains integer that is too large."),
        (b"[]", "Invalid API request", "No messages were found in the request body."),
        (b'["messages"]', "Invalid API request", "No messages were found in the request body."),
        (b"{}", "Invalid API request", "No messages were found in the request body."),
        (b'{"messages": {}}', "Invalid request body", "Document type not supported."),
        (b'{"messages": [1]}', "Invalid request body", "Document type not supported."),
        (b'{"messages": []}', "Invalid API request", "No messages to enqueu."),
        (b'{"messages": [{"ttl": 60}]}', "Invalid request body", 'Missing "body" field.'),
        *(
            (
                msgspec.json.encode({"messages": [{"body": 1}, {"body": 1, field: value}]}),
                "Invalid request body",
                f'The value of the "{field}" field must be a int.',
            )
            for field in ("ttl", "delay")
            for value in NO_INTEGERS
        ),
    ],
)
def test_a_post_that_is_wrong_is_refused_in_zaqars_words(body: bytes, title: str, description: str) -> None:
    with pytest.raises(ZaqarError) as caught:
        parse_post(body)
    assert (caught.value.status, caught.value.title, caught.value.description) == (400, title, description)


def test_parameters_are_read_as_zaqar_reads_them() -> None:
    query = URL("/?ids=a&ids=b,c,&ids=&limit=1&limit=+2&echo=&echo=True&marker=").query
    assert list_parameter(query, "ids") == ["a", "b", "c"]
    assert list_parameter(query, "none") == []
    assert integer_parameter(query, "limit") == 2
    assert integer_parameter(query, "pop") is None
    assert switch_parameter(query, "echo") is True
    assert text_parameter(query, "marker") is None


@each_case(
    "read, text, expected",
    [
        (integer_parameter, "a", "The value must be an integer."),
        (integer_parameter, "1.0", "The value must be an integer."),
        (switch_parameter, "maybe", 'The value of the parameter must be "true" or "false".'),
        (switch_parameter, "TRUE", 'The value of the parameter must be "true" or "false".'),
    ],
)
def test_a_wrong_parameter_is_named(read: Any, text: str, expected: str) -> None:
    with pytest.raises(ZaqarError) as caught:
        read(URL.build(query={"x": text}).query, "x")
    assert (caught.value.title, caught.value.description) == (
        "Invalid parameter",
        f'The "x" parameter is invalid. {expected}',
    )
