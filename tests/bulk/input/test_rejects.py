"""Rejects: what they say of a row, and what they must not say."""

from __future__ import annotations

import json

from later.bulk.input.column_names import MISSING_TIME
from later.bulk.input.rejects import (
    RejectCode,
    build_reject,
    decode_readable,
    is_redacted,
    redact_row,
    redacted_values,
    row_with_key,
)
from later.bulk.input.row_origins import RowOrigin
from later.core.errors import Refused, TooLarge
from later.core.policy import Deliver, Policy
from later.core.validation import EXPECTED
from tests.bulk.validation import CALLBACK, validate_bodies
from tests.cases import each_case

ROW = {"id": "j:x", "topic": "order", "callback": CALLBACK}


def reject_of(**changes: object) -> tuple[str | None, str, str | None, str | None]:
    """Return field, code, expected and got of the reject of a task that the daemon refuses."""
    body = json.dumps(ROW | changes).encode()
    [error] = validate_bodies([body])
    assert isinstance(error, Refused)
    reject = build_reject(body, b"17", error)
    return reject.field, reject.code, reject.expected, reject.got


@each_case(
    ("changes", "reject"),
    [
        ({"delay": -5}, ("delay", "invalid", "a number of seconds ≥ 0", "-5")),
        ({"delay": "5, got 6"}, ("delay", "invalid", "a number of seconds ≥ 0", '"5, got 6"')),
        ({"callback": "x, got policy"}, ("callback", "invalid", EXPECTED["callback"], '"x, got policy"')),
        ({"callback": None}, ("callback", "missing", EXPECTED["callback"], "nothing")),
        ({"topic": ""}, ("topic", "missing", EXPECTED["topic"], '""')),
        ({"execute_time": 5, "delay": 5}, ("execute_time", "invalid", "either delay or execute_time", "both")),
        ({"nickname": 5}, ("nickname", "unknown_field", None, None)),
        ({"timeout": 5}, ("timeout", "unknown_field", None, None)),
    ],
)  # fmt: skip
def test_a_reject_says_what_was_expected_and_what_came(changes: dict[str, object], reject: object) -> None:
    assert reject_of(**changes) == reject


@each_case(
    ("changes", "got"),
    [
        ({"callback": "https://h:99999/"}, '"https://h:99999/"'),
        ({"callback": f"https://{'h' * 80}:0/a"}, f'"https://{"h" * 68}…'),
        ({"callback": 'x": y'}, '"x": y"'),
        ({"execute_time": 1_700_000_000_000}, "1700000000000"),
        ({"content": {"a": 1}}, "an object"),
        ({"headers": {"Host": "x"}}, '"Host"'),
        ({"headers": {"x: y": 5}}, 'a number in "x: y"'),
    ],
)  # fmt: skip
def test_what_came_is_without_the_advice_that_follows_it_in_the_reason(changes: dict[str, object], got: str) -> None:
    assert reject_of(**changes)[3] == got


def test_a_row_of_a_pulled_topic_got_a_callback_that_the_policy_does_not_allow() -> None:
    body = json.dumps(ROW).encode()
    [error] = validate_bodies([body], Policy(deliver=Deliver.PULL))
    assert isinstance(error, Refused)
    reject = build_reject(body, None, error)
    assert (reject.field, reject.code, reject.got) == ("callback", RejectCode.NOT_ALLOWED, f'"{CALLBACK}"')


def test_a_row_without_a_time_got_nothing() -> None:
    assert build_reject(b"{}", None, Refused(f"delay: {MISSING_TIME}", "delay")).got == "nothing"


def test_a_line_that_is_no_object_is_malformed() -> None:
    for text in (b"{", b"[]", b"caf\xe9"):
        [error] = validate_bodies([text])
        assert isinstance(error, Refused)
        reject = build_reject(text, None, error)
        assert (reject.field, reject.code, reject.row) == (None, RejectCode.MALFORMED, decode_readable(text))


def test_a_task_that_is_too_large_and_any_other_reason_have_codes_too() -> None:
    assert build_reject(b"{}", None, TooLarge("expected at most 5 bytes")).code is RejectCode.TOO_LARGE
    assert build_reject(b"{}", None, Refused("no more today", "topic")).code is RejectCode.REFUSED


@each_case(
    "reason",
    [
        "Exceeds max allowed delivery delay of 5 milliseconds",
        "delay: expected none, for the topic's policy allows no delays",
    ],
)
def test_a_value_that_the_topics_policy_does_not_allow_has_a_code_of_its_own(reason: str) -> None:
    assert build_reject(b"{}", None, Refused(reason, "delay")).code is RejectCode.NOT_ALLOWED


def test_a_reject_says_where_its_row_came_from() -> None:
    reject = build_reject(b"{}", None, Refused("why"), None, RowOrigin("file:/lake/a.csv", 7))
    assert (reject.file, reject.position) == ("file:/lake/a.csv", 7)


@each_case(
    ("row", "redacted"),
    [
        (b'{"delay":1.00000000000000000001,"headers":{"A":"secret","B":"secret"}}',
         '{"delay":1.00000000000000000001,"headers":{"A":"***","B":"***"}}'),
        (b'{"headers":"secret"}', '{"headers":"***"}'),
        (b'{"Context":{"a":"secret"}}', '{"Context":{"a":"***"}}'),
        (b'{"headers":["secret"]}', '{"headers":"***"}'),
        (b'{"headers":null}', '{"headers":null}'),
        (b'{"delay":NaN,"headers":{"A":"secret"}}', '{"delay":NaN,"headers":{"A":"***"}}'),
        (b'{"content":"caf\xe9","headers":{"A":"secret"}}', '{"content":"caf\\udce9","headers":{"A":"***"}}'),
        (b'{"topic":"\\ud800","headers":{"A":"secret"}}', '{"topic":"\\ud800","headers":{"A":"***"}}'),
        (b'{"content":"\\"headers\\"","delay":1e400}', '{"content":"\\"headers\\"","delay":1e400}'),
        (b'{"content":"a \\"headers\\""}', '{"content":"a \\"headers\\""}'),
        (b'["headers"]', '["headers"]'),
        (b'{"callback":"http://me:secret@h/a@b?c=d@e"}', '{"callback":"http://***@h/a@b?c=d@e"}'),
        (b'{"callback":"http://me:sec@ret@h","delay":NaN}', '{"callback":"http://***@h","delay":NaN}'),
        (b'{"callback":"//me:secret@h"}', '{"callback":"//***@h"}'),
        (b'{"callback":"http://h/a//b@c?d=//e@f"}', '{"callback":"http://h/a//b@c?d=//e@f"}'),
        (b'{"callback":5}', '{"callback":5}'),
        (b'{"headers":{"A":"b"}," Headers":{"A":"secret"}}', '{"headers":{"A":"***"}," Headers":{"A":"***"}}'),
        (b'{"delay":NaN,"Callback":"http://me:secret@h"}', '{"delay":NaN,"Callback":"http://***@h"}'),
    ],
)  # fmt: skip
def test_secrets_are_redacted(row: bytes, redacted: str) -> None:
    assert redact_row(row) == redacted
    assert build_reject(row, None, Refused("why")).row == redacted


@each_case("start", ["http://", "", " http://", "http:/", "http:\\\\", "http:"])
def test_no_password_of_a_callback_is_in_a_reason(start: str) -> None:
    """The daemon quotes the value, and cuts it where it is long: also in the middle of a password."""
    callback = f"{start}me:{'secret' * 20}@h/ x"
    body = json.dumps(ROW | {"callback": callback}).encode()
    [error] = validate_bodies([body])
    assert isinstance(error, Refused)
    assert "secret" in error.detail

    reject = build_reject(body, None, error)

    assert not any("secret" in str(part) for part in reject)
    assert reject.got == "a URL with user:password@"


def test_a_row_has_its_key_as_text() -> None:
    assert row_with_key(b'{"delay":5}', 'ä"'.encode()) == '{"key":"ä\\"","delay":5}'.encode()
    assert row_with_key(b"{}", b"17") == b'{"key":"17"}'
    for key in (None, b"caf\xe9"):
        assert row_with_key(b"{}", key) == b"{}"


@each_case("headers", [{"A": "***", "B": "b"}, "***"])
def test_redacted_headers_are_recognized(headers: object) -> None:
    shown = json.loads(redact_row(json.dumps({"headers": headers}).encode()))["headers"]
    assert is_redacted(shown)
    assert not is_redacted({"A": "* * *"})
    assert not is_redacted(None)
    assert "--set headers=" in redacted_values("headers").detail
