"""Payloads, and how rejected rows are shown."""

from __future__ import annotations

import json

import pytest

from later.bulk.input.json import NO_ID
from later.bulk.input.payload import Payloads, Reject, decode_readable, redact_row


def body(id: str, **fields: object) -> bytes:
    return json.dumps({"id": id, **fields}, separators=(",", ":"), ensure_ascii=False).encode()


def payloads(*ids: str, keys: list[bytes | None] | None = None) -> Payloads:
    return Payloads([body(id, topic=id) for id in ids], list(ids), keys)


def test_selected_payloads_keep_ids_and_keys() -> None:
    keys: list[bytes | None] = [b"1", None, b"3"]
    assert payloads("a", "b", "c", keys=keys).select([1, 2]) == payloads("b", "c", keys=[None, b"3"])
    assert payloads("a", "b", "c").select([1, 2]) == payloads("b", "c")


def test_a_selection_keeps_ids_and_keys() -> None:
    assert payloads("a", "b", "c", keys=[b"1", b"2", b"3"]).select([2, 0]) == payloads("c", "a", keys=[b"3", b"1"])
    assert payloads("a", "b", "c").select([]) == payloads()


def test_a_reject_has_the_row_without_the_generated_id() -> None:
    rows = Payloads([body("j:x", topic="t", delay=-5)], ["j:x"], [b"17"])
    assert rows.reject(0, "delay", "why") == Reject("17", '{"topic":"t","delay":-5}', "delay", "why")


def test_an_empty_row_is_an_empty_object() -> None:
    assert Payloads([body("j:x")], ["j:x"], [b"17"]).reject(0, "topic", "why").row == "{}"


@pytest.mark.parametrize("value", [b"NaN", b'"\\ud800"', b'"caf\xe9"', b'{"a":' + b"[" * 5000])
def test_a_malformed_reject_has_no_id(value: bytes) -> None:
    rows = Payloads([b'{"id":"j:x","delay":' + value + b"}"], ["j:x"], [b"17"])
    assert rows.reject(0, None, "why").row == '{"delay":' + decode_readable(value) + "}"


@pytest.mark.parametrize(
    ("row", "redacted"),
    [
        (b'{"delay":1.00000000000000000001,"headers":{"A":"secret","B":"secret"}}',
         '{"delay":1.00000000000000000001,"headers":{"A":"***","B":"***"}}'),
        (b'{"headers":"secret"}', '{"headers":"***"}'),
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
    ],
)  # fmt: skip
def test_secrets_are_redacted(row: bytes, redacted: str) -> None:
    assert redact_row(row) == redacted
    assert (
        Payloads([b'{"id":"j:x",' + row[1:]], ["j:x"], None).reject(0, None, "why").row == redacted or row[:1] == b"["
    )


def test_secrets_are_redacted_under_mapped_names() -> None:
    row = b'{"my \\"h":{"A":"secret"},"headers":{"A":"b"},"callback":"http://a:b@c"}'
    redacted = '{"my \\"h":{"A":"***"},"headers":{"A":"b"},"callback":"http://***@c"}'
    assert redact_row(row, {"headers": 'my "h', "topic": "callback"}) == redacted


def test_a_malformed_line_is_shown_as_it_is() -> None:
    rows = Payloads([b'{"id":"mine"'], [NO_ID], [None])
    assert rows.reject(0, None, "why") == Reject(None, '{"id":"mine"', None, "why")


def test_any_key_is_readable() -> None:
    rows = payloads("a", "b", "c", keys=["ä".encode(), b"caf\xe9", None])
    assert [rows.readable_key(position) for position in range(3)] == ["ä", "caf\\xe9", None]
    assert payloads("a").readable_key(0) is None
