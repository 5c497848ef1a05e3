"""What is sent of a table, and what is told of a row that came to nothing."""

from __future__ import annotations

import json

import pytest

from later.bulk.input.json import NO_ID
from later.bulk.input.payload import Payloads, Reject, decode_readable, redact_row


def body(id: str, **fields: object) -> bytes:
    return json.dumps({"id": id, **fields}, separators=(",", ":"), ensure_ascii=False).encode()


def lines(*ids: str, keys: list[bytes | None] | None = None) -> Payloads:
    return Payloads([body(id, topic=id) for id in ids], list(ids), keys)


def test_a_part_is_of_all_that_a_line_has() -> None:
    keys: list[bytes | None] = [b"1", None, b"3"]
    assert lines("a", "b", "c", keys=keys).slice(1, 3) == lines("b", "c", keys=[None, b"3"])
    assert lines("a", "b", "c").slice(1, 3) == lines("b", "c")


def test_some_are_of_all_that_a_line_has() -> None:
    assert lines("a", "b", "c", keys=[b"1", b"2", b"3"]).select([2, 0]) == lines("c", "a", keys=[b"3", b"1"])
    assert lines("a", "b", "c").select([]) == lines()


def test_a_reject_has_the_row_without_the_id_of_our_making() -> None:
    there = Payloads([body("j:x", topic="t", delay=-5)], ["j:x"], [b"17"])
    assert there.reject(0, "delay", "why") == Reject("17", '{"topic":"t","delay":-5}', "delay", "why")


def test_a_row_of_nothing_is_an_empty_object() -> None:
    assert Payloads([body("j:x")], ["j:x"], [b"17"]).reject(0, "topic", "why").row == "{}"


@pytest.mark.parametrize("value", [b"NaN", b'"\\ud800"', b'"caf\xe9"', b'{"a":' + b"[" * 5000])
def test_so_has_one_that_is_no_json(value: bytes) -> None:
    there = Payloads([b'{"id":"j:x","delay":' + value + b"}"], ["j:x"], [b"17"])
    assert there.reject(0, None, "why").row == '{"delay":' + decode_readable(value) + "}"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (b'{"delay":1.00000000000000000001,"headers":{"A":"hush","B":"hush"}}',
         '{"delay":1.00000000000000000001,"headers":{"A":"***","B":"***"}}'),
        (b'{"headers":"hush"}', '{"headers":"***"}'),
        (b'{"headers":["hush"]}', '{"headers":"***"}'),
        (b'{"headers":null}', '{"headers":null}'),
        (b'{"delay":NaN,"headers":{"A":"hush"}}', '{"delay":NaN,"headers":{"A":"***"}}'),
        (b'{"content":"caf\xe9","headers":{"A":"hush"}}', '{"content":"caf\\udce9","headers":{"A":"***"}}'),
        (b'{"topic":"\\ud800","headers":{"A":"hush"}}', '{"topic":"\\ud800","headers":{"A":"***"}}'),
        (b'{"content":"\\"headers\\"","delay":1e400}', '{"content":"\\"headers\\"","delay":1e400}'),
        (b'{"content":"a \\"headers\\""}', '{"content":"a \\"headers\\""}'),
        (b'["headers"]', '["headers"]'),
        (b'{"callback":"http://me:hush@h/a@b?c=d@e"}', '{"callback":"http://***@h/a@b?c=d@e"}'),
        (b'{"callback":"http://me:hu@sh@h","delay":NaN}', '{"callback":"http://***@h","delay":NaN}'),
        (b'{"callback":"//me:hush@h"}', '{"callback":"//***@h"}'),
        (b'{"callback":"http://h/a//b@c?d=//e@f"}', '{"callback":"http://h/a//b@c?d=//e@f"}'),
        (b'{"callback":5}', '{"callback":5}'),
    ],
)  # fmt: skip
def test_of_headers_the_names_alone_are_told(row: bytes, told: str) -> None:
    assert redact_row(row) == told
    assert Payloads([b'{"id":"j:x",' + row[1:]], ["j:x"], None).reject(0, None, "why").row == told or row[:1] == b"["


def test_whatever_the_row_calls_them() -> None:
    row = b'{"my \\"h":{"A":"hush"},"headers":{"A":"b"},"callback":"http://a:b@c"}'
    told = '{"my \\"h":{"A":"***"},"headers":{"A":"b"},"callback":"http://***@c"}'
    assert redact_row(row, {"headers": 'my "h', "topic": "callback"}) == told


def test_a_corrupt_line_is_told_as_it_was() -> None:
    there = Payloads([b'{"id":"mine"'], [NO_ID], [None])
    assert there.reject(0, None, "why") == Reject(None, '{"id":"mine"', None, "why")


def test_a_key_is_told_to_a_person_whatever_it_is() -> None:
    there = lines("a", "b", "c", keys=["ä".encode(), b"caf\xe9", None])
    assert [there.readable_key(position) for position in range(3)] == ["ä", "caf\\xe9", None]
    assert lines("a").readable_key(0) is None
