"""`POST /create`: which fields are accepted and which are refused, with their texts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from later.core.clock import rfc3339
from later.core.policy import Policy
from tests.api.api_fixture import MINIMAL, Answer, ApiFixture, bad_request, create_result, ok, serve_api
from tests.api.states import STATES, put_all_states
from tests.builders import NOW
from tests.cases import each_case

NOW_S = NOW // 1000
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TEN_YEARS_S = 3653 * 86_400

TOPIC = "a string of 1 to 255 bytes without control characters or empty parts"
CALLBACK = "an absolute http or https URL of at most 2048 characters"
SECONDS = "a number of seconds ≥ 0"
UNIX = "a number of Unix seconds or an RFC 3339 time"
RETRY = "an integer from 0 to 1000"
AS_TEXT = r'''JSON goes in as text, as in "content": "{\"order\": 7}"'''
HEADERS = "an object of up to 20 strings"
ID = "1 to 128 characters of A-Za-z0-9._~:-"


def with_json(field: str, text: str) -> bytes:
    """Return a valid body with one more field, whose value is written as it is."""
    return f'{json.dumps(MINIMAL)[:-1]}, "{field}": {text}}}'.encode()


async def create_and_query(api: ApiFixture, **fields: Any) -> dict[str, Any]:
    """Create a task with these fields, and return it as a query shows it."""
    status, answer = await api.post("/create", {**MINIMAL, **fields})
    assert status == 200, answer
    status, task = await api.post("/query", {"id": answer["id"]})
    assert status == 200
    return dict(task)


async def test_a_task_is_created_under_a_new_uuid(api: ApiFixture) -> None:
    status, answer = await api.post("/create", MINIMAL)
    assert status == 200
    assert answer.keys() == {"id", "due_at"}
    assert UUID.fullmatch(answer["id"])


async def test_a_callers_own_id_is_created_once(api: ApiFixture) -> None:
    assert await api.post("/create", {**MINIMAL, "id": "a"}) == ok(**create_result("a"))
    assert await api.post("/create", {**MINIMAL, "id": "a"}) == ok(**create_result("a", False))


async def test_absent_fields_have_defaults(api: ApiFixture) -> None:
    task = await create_and_query(api, id="a")
    assert task == {
        "id": "a", "topic": "order", "execute_time": NOW_S, "max_retry": 3, "has_retry": 0,
        "callback": "http://127.0.0.1:8888/success", "content": "", "creat_time": NOW_S, "state": "delay",
        "due_at": "2027-01-15T08:00:00.000Z", "attempts": 0, "last_error": None,
    }  # fmt: skip


@each_case(
    ("fields", "shown"),
    [
        ({"topic": "shop/order"}, {"topic": "shop/order"}),
        ({"topic": "default/order"}, {"topic": "order"}),
        ({"topic": "é" * 127}, {"topic": "é" * 127}),
        ({"callback": "https://example.com:8443/x?y=z"}, {"callback": "https://example.com:8443/x?y=z"}),
        ({"delay": 0}, {"due_at": "2027-01-15T08:00:00.000Z"}),
        ({"delay": 10}, {"due_at": "2027-01-15T08:00:10.000Z", "execute_time": NOW_S + 10}),
        ({"delay": 0.0351}, {"due_at": "2027-01-15T08:00:00.036Z", "execute_time": NOW_S + 1}),
        ({"delay": TEN_YEARS_S}, {"execute_time": NOW_S + TEN_YEARS_S}),
        ({"execute_time": NOW_S + 5}, {"due_at": "2027-01-15T08:00:05.000Z", "execute_time": NOW_S + 5}),
        ({"execute_time": NOW_S + 0.5}, {"due_at": "2027-01-15T08:00:00.500Z"}),
        ({"execute_time": 1}, {"due_at": "2027-01-15T08:00:00.000Z"}),
        ({"execute_time": "2027-01-15T09:00:05.0071+01:00"}, {"due_at": "2027-01-15T08:00:05.008Z"}),
        ({"execute_time": "2017-09-09t05:17:10z"}, {"due_at": "2027-01-15T08:00:00.000Z"}),
        ({"retry": 0}, {"max_retry": 0}),
        ({"retry": 5.0}, {"max_retry": 5}),
        ({"retry": 1e2}, {"max_retry": 100}),
        ({"retry": -0.0}, {"max_retry": 0}),
        ({"retry": 1000}, {"max_retry": 1000}),
        ({"content": "hello é \u0000"}, {"content": "hello é \u0000"}),
        ({"headers": {"Authorization": "Bearer t", "X-A": ""}}, {"headers": ["Authorization", "X-A"]}),
        ({"headers": {}}, {}),
        ({"ttl": 60}, {"expires_at": "2027-01-15T08:01:00.000Z"}),
        ({"ttl": 1e300}, {}),
        ({"id": "A-Za-z0-9._~:-"}, {"id": "A-Za-z0-9._~:-"}),
        (dict.fromkeys(["delay", "execute_time", "retry", "content", "headers", "ttl", "id"]), {"max_retry": 3}),
    ],
)
async def test_a_valid_field_is_accepted(api: ApiFixture, fields: dict[str, Any], shown: dict[str, Any]) -> None:
    task = await create_and_query(api, **fields)
    assert {name: task[name] for name in shown} == shown


@each_case(
    ("field", "text", "detail"),
    [
        ("topic", "null", f"topic: expected {TOPIC}, got nothing"),
        ("topic", '""', f'topic: expected {TOPIC}, got ""'),
        ("topic", "5", f"topic: expected {TOPIC}, got 5"),
        ("topic", '"/x"', f'topic: expected {TOPIC}, got "/x"'),
        ("topic", '"x/"', f'topic: expected {TOPIC}, got "x/"'),
        ("topic", r'"a\nb"', f'topic: expected {TOPIC}, got "a\\nb"'),
        ("topic", r'"\ud800"', "topic: expected Unicode text, got a lone surrogate in it"),
        ("topic", r'"\udc00a"', "topic: expected Unicode text, got a lone surrogate in it"),
        ("topic", '"later/x"', "topic: expected another one, because the namespace later is reserved"),
        (
            "callback",
            "null",
            f"callback: expected {CALLBACK}, got nothing: "
            "only a topic with deliver pull has tasks without, or one whose policy has a callback",
        ),
        ("callback", '"ftp://h/"', f'callback: expected {CALLBACK}, got "ftp://h/"'),
        ("callback", '"/x"', f'callback: expected {CALLBACK}, got "/x"'),
        ("callback", '"http://u:p@h/"', "callback: expected a URL without user:password@, got one with it"),
        ("callback", '"http://h/#f"', 'callback: expected a URL without a fragment, got "http://h/#f"'),
        ("delay", "-5", f"delay: expected {SECONDS}, got -5"),
        ("delay", '"15"', f'delay: expected {SECONDS}, got "15"'),
        ("delay", "true", f"delay: expected {SECONDS}, got true"),
        ("delay", "NaN", f"delay: expected {SECONDS}, got nan"),
        ("delay", "1e400", f"delay: expected {SECONDS}, got inf"),
        ("delay", "-Infinity", f"delay: expected {SECONDS}, got -inf"),
        ("delay", "[1]", f"delay: expected {SECONDS}, got an array"),
        ("delay", "{}", f"delay: expected {SECONDS}, got an object"),
        ("delay", "9" * 400, f"delay: expected {SECONDS}, got {'9' * 77}…"),
        ("delay", "1e9", "delay: expected a time at most ten years ahead, got 1000000000"),
        ("execute_time", '"now"', f'execute_time: expected {UNIX}, got "now"'),
        ("execute_time", "1e11", "execute_time: expected a time at most ten years ahead, got 100000000000"),
        ("execute_time", '"15"', f'execute_time: expected {UNIX}, got "15"'),
        (
            "execute_time",
            '"2027-01-15T08:00:00"',
            "execute_time: expected a time with its zone, as in 2027-01-15T08:00:00Z or 2027-01-15T09:00:00+01:00, got "
            '"2027-01-15T08:00:00"',
        ),
        (
            "execute_time",
            "1800000000000",
            f"execute_time: expected {UNIX}, got 1800000000000: are these milliseconds?",
        ),
        (
            "execute_time",
            '"2127-01-15T08:00:00Z"',
            'execute_time: expected a time at most ten years ahead, got "2127-01-15T08:00:00Z"',
        ),
        ("retry", "3.5", f"retry: expected {RETRY}, got 3.5"),
        ("retry", "1e30", f"retry: expected {RETRY}, got 1e+30"),
        ("retry", "1001.0", f"retry: expected {RETRY}, got 1001"),
        ("retry", "true", f"retry: expected {RETRY}, got true"),
        ("retry", '"3"', f'retry: expected {RETRY}, got "3"'),
        ("retry", "-1", f"retry: expected {RETRY}, got -1"),
        ("retry", "1001", f"retry: expected {RETRY}, got 1001"),
        ("retry", "9" * 30, f"retry: expected {RETRY}, got {'9' * 30}"),
        ("content", "5", "content: expected a string, got 5"),
        ("content", '{"a": 1}', f"content: expected a string, got an object: {AS_TEXT}"),
        ("content", '["a"]', f"content: expected a string, got an array: {AS_TEXT}"),
        ("content", r'"\ud800"', "content: expected Unicode text, got a lone surrogate in it"),
        ("headers", '"s3cret"', f"headers: expected {HEADERS}, got a string"),
        ("headers", '["s3cret"]', f"headers: expected {HEADERS}, got an array"),
        ("headers", '{"X-A": 7}', f'headers: expected {HEADERS}, got a number in "X-A"'),
        ("headers", '{"X-A": null}', f'headers: expected {HEADERS}, got null in "X-A"'),
        ("headers", r'{"X-A": "\ud800"}', "headers: expected Unicode text, got a lone surrogate in it"),
        ("headers", '{"Host": "h"}', 'headers: expected a header of your own, got "Host", which later sets'),
        ("headers", r'{"X-A": "s3cret\n"}', 'headers: expected no control characters, got one in "X-A"'),
        ("ttl", "0", "ttl: expected a number of seconds > 0, got 0"),
        ("ttl", "false", "ttl: expected a number of seconds > 0, got false"),
        ("id", '""', f'id: expected {ID}, got ""'),
        ("id", '"a b"', f'id: expected {ID}, got "a b"'),
        ("id", "17", f"id: expected {ID}, got 17"),
        ("colour", '"red"', "colour: unknown field"),
        ("colour", "null", "colour: unknown field"),
        ("tags", '["a"]', "tags: not a field of this version"),
        ("cron", '"* * * * *"', "cron: not a field of this version"),
    ],
)
async def test_a_field_is_refused_by_name(api: ApiFixture, field: str, text: str, detail: str) -> None:
    before = api.metric("later_tasks_refused_total")
    assert await api.post("/create", with_json(field, text)) == bad_request(detail, field)
    assert api.metric("later_tasks_refused_total") == before + 1


@each_case("name", ["method", "raw", "tags", "timeout", "cron", "backoff"])
async def test_reserved_names_are_refused(api: ApiFixture, name: str) -> None:
    assert await api.post("/create", with_json(name, "1")) == bad_request(f"{name}: not a field of this version", name)


async def test_the_first_wrong_field_is_named(api: ApiFixture) -> None:
    body = {**MINIMAL, "retry": "x", "delay": "y", "colour": 1}
    assert await api.post("/create", body) == bad_request(f'retry: expected {RETRY}, got "x"', "retry")


async def test_delay_and_execute_time_exclude_each_other(api: ApiFixture) -> None:
    answer = await api.post("/create", {**MINIMAL, "delay": 1, "execute_time": NOW_S})
    assert answer == bad_request("execute_time: expected either delay or execute_time, got both", "execute_time")


async def test_the_last_value_of_a_duplicate_key_counts(api: ApiFixture) -> None:
    for wrong in ('"x"', "NaN", "1"):
        body = with_json("delay", f'{wrong}, "delay": 10, "id": "{len(wrong)}"')
        assert (await api.post("/create", body))[0] == 200
        _, task = await api.post("/query", {"id": str(len(wrong))})
        assert task["due_at"] == "2027-01-15T08:00:10.000Z"


async def test_a_delay_over_the_policys_limit_is_refused_in_zaqars_words() -> None:
    async with serve_api(policy=Policy(max_delay_ms=900_000)) as api:
        answer = await api.post("/create", {**MINIMAL, "delay": 901})
        assert answer == bad_request("Exceeds max allowed delivery delay of 900000 milliseconds", "delay")
        assert (await api.post("/create", {**MINIMAL, "delay": 900}))[0] == 200


async def test_a_task_that_expires_before_it_is_due_is_accepted_with_a_warning(api: ApiFixture) -> None:
    body = {**MINIMAL, "id": "a", "delay": 60, "ttl": 60}
    warning = "The task will expire before it is due and never be delivered."
    assert await api.post("/create", body) == ok(**create_result("a", delay=60), warning=warning)
    assert await api.post("/create", body) == ok(**create_result("a", False, delay=60))


async def test_a_task_that_is_due_before_it_expires_has_no_warning(api: ApiFixture) -> None:
    assert await api.post("/create", {**MINIMAL, "id": "a", "delay": 60, "ttl": 60.001}) == ok(
        **create_result("a", delay=60)
    )


async def test_a_create_reports_the_due_time_of_a_new_task(api: ApiFixture) -> None:
    await api.post("/create", {**MINIMAL, "id": "a", "delay": 10})
    await api.post("/create", {**MINIMAL, "id": "b", "delay": 10, "ttl": 5})
    await api.post("/create", {**MINIMAL, "id": "a", "delay": 1})
    await api.post("/create", {**MINIMAL, "delay": -1})
    assert api.wakes == [NOW + 10_000, NOW + 10_000]


async def test_creates_are_counted(api: ApiFixture) -> None:
    for id in ("a", "b", "a", " "):
        await api.post("/create", {**MINIMAL, "id": id})
    names = ("later_tasks_created_total", "later_tasks_duplicate_total", "later_tasks_refused_total")
    assert [api.metric(name) for name in names] == [2, 1, 1]


@each_case("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json; a=b"])
async def test_any_content_type_is_accepted(api: ApiFixture, content_type: str) -> None:
    body = json.dumps(MINIMAL).encode()
    status, _ = await api.post("/create", body, headers={"Content-Type": content_type})
    assert status == 200


NOT_AN_OBJECT: list[tuple[bytes, str]] = [
    (b"", "expected a JSON object, got nothing"),
    (b" \r\n", "expected a JSON object, got nothing"),
    (b"[]", "expected a JSON object, got an array"),
    (b'"s3cret"', "expected a JSON object, got a string"),
    (b"null", "expected a JSON object, got null"),
    (b"true", "expected a JSON object, got a boolean"),
    (b"5", "expected a JSON object, got a number"),
    (b"NaN", "expected a JSON object, got a number"),
    (b"\xef\xbb\xbf{}", "expected JSON without a byte order mark"),
    (b'{"content": "\xff"}', "expected UTF-8, got the byte 0xff at position 13"),
    (b'{"\xc3": 1}', "expected UTF-8, got the byte 0xc3 at position 2"),
    (b'{"content": "\xed\xa0\x80"}', "expected UTF-8, got the byte 0xed at position 13"),
    (b"{", "expected JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    (b"{} x", "expected JSON: Extra data: line 1 column 4 (char 3)"),
    (b'{"delay": 01}', "expected JSON: Expecting ',' delimiter: line 1 column 12 (char 11)"),
    (b'{"content": "a\x01"}', "expected JSON: Invalid control character at: line 1 column 15 (char 14)"),
    (b"\x00", "expected JSON: Expecting value: line 1 column 1 (char 0)"),
    (b"[" * 100_000, "expected JSON, got it nested too deeply"),
    (b'{"content": ' + b"[" * 100_000, "expected JSON, got it nested too deeply"),
    (b'{"delay": ' + b"9" * 5000 + b"}", "expected JSON, got an integer of too many digits in it"),
]


@each_case("path", ["/create", "/query", "/delete"])
async def test_a_body_that_is_not_an_object_is_refused(api: ApiFixture, path: str) -> None:
    answers = [await api.post(path, body) for body, _ in NOT_AN_OBJECT]
    assert answers == [bad_request(detail) for _, detail in NOT_AN_OBJECT]


async def test_a_name_of_megabytes_is_refused_in_one_line(api: ApiFixture) -> None:
    status, answer = await api.post("/create", {"x" * 1_000_000: 1})
    assert (status, answer["detail"]) == (400, f"{'x' * 80}: unknown field")


async def test_an_unprintable_name_is_shown_escaped(api: ApiFixture) -> None:
    answer: Answer = await api.post("/create", rb'{"\ud800\n": 1}')
    assert answer == bad_request(r"\ud800\n: unknown field", r"\ud800\n")


@each_case("path", ["/create", "/create/batch"])
async def test_no_refusal_shows_the_value_of_a_header(api: ApiFixture, path: str) -> None:
    headers: list[object] = [
        {"X-A": "s3cret", "Host": "s3cret"},
        {"X-A": "s3cret", "X-B": 5},
        {"X-A": ["s3cret"]},
        {"X-A": {"y": "s3cret"}},
        {"X-A": "s3cret\ud800"},
        {"X-A": "s3cret\r\n"},
        {"X-A": "s3cret" * 2000},
        {f"X-{n}": "s3cret" for n in range(21)},
        {"": "s3cret"},
        "s3cret",
        ["s3cret"],
    ]
    for value in headers:
        text = json.dumps({**MINIMAL, "headers": value})
        status, answer = await api.post(path, (text if path == "/create" else f"[{text}]").encode())
        error = answer if path == "/create" else answer["results"][0]["error"]
        assert (error["status"], error["field"]) == (400, "headers")
        assert "s3cret" not in str(answer), (status, answer)


class TestDueTime:
    """`due_at` of the task that is there: the new one's, or the one that has had the id before."""

    async def test_it_is_what_a_query_shows(self, api: ApiFixture) -> None:
        _, answer = await api.post("/create", {**MINIMAL, "delay": 1.5})
        assert answer["due_at"] == rfc3339(NOW + 1500)
        assert (await api.post("/query", {"id": answer["id"]}))[1]["due_at"] == answer["due_at"]

    @pytest.mark.parametrize("topic", ["order", "another"])
    @pytest.mark.parametrize("state", [*STATES])
    async def test_it_is_that_of_the_existing_task_in_whatever_state(
        self, api: ApiFixture, state: str, topic: str
    ) -> None:
        await put_all_states(api)
        _, shown = await api.post("/query", {"id": state})
        _, answer = await api.post("/create", {**MINIMAL, "topic": topic, "id": state, "delay": 7})
        assert answer.pop("due_at", None) == shown.get("due_at")
        assert answer == {"id": state, "created": False}
        _, batch = await api.post("/create/batch", [{**MINIMAL, "topic": topic, "id": state}])
        assert batch["results"][0].get("due_at") == shown.get("due_at")
