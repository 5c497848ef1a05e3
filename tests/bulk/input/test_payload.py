"""Payloads, and the rows that they are sent for."""

from __future__ import annotations

import json

from later.bulk.input.json import NO_ID
from later.bulk.input.payload import Payloads
from later.bulk.input.rejects import decode_readable
from later.bulk.input.row_origins import RowOrigin
from later.core.errors import Refused
from tests.cases import each_case

WHY = Refused("why")


def body(id: str, **fields: object) -> bytes:
    return json.dumps({"id": id, **fields}, separators=(",", ":"), ensure_ascii=False).encode()


def payloads(*ids: str, keys: list[bytes | None] | None = None) -> Payloads:
    return Payloads([body(id, topic=id) for id in ids], list(ids), keys)


def test_selected_payloads_keep_ids_and_keys() -> None:
    keys: list[bytes | None] = [b"1", None, b"3"]
    assert payloads("a", "b", "c", keys=keys).select([1, 2])[:3] == payloads("b", "c", keys=[None, b"3"])[:3]
    assert payloads("a", "b", "c").select([1, 2])[:3] == payloads("b", "c")[:3]


def test_a_selection_keeps_ids_and_keys() -> None:
    assert (
        payloads("a", "b", "c", keys=[b"1", b"2", b"3"]).select([2, 0])[:3] == payloads("c", "a", keys=[b"3", b"1"])[:3]
    )
    assert payloads("a", "b", "c").select([])[:3] == payloads()[:3]


def test_payloads_in_the_order_of_their_due_times_keep_their_rows_and_origins() -> None:
    """A time that is no number comes last, and rows that are due at the same time keep their order."""
    delays = [5, "x", 3, 5]
    bodies = [body(f"j:{number}", delay=delay) for number, delay in enumerate(delays)]
    rows = Payloads(bodies, [f"j:{number}" for number in range(4)], None, [1, 2, 3, 4], lambda row: RowOrigin("f", row))

    in_order = rows.sort_by_due_time(1000)

    assert in_order.ids == ["j:2", "j:0", "j:3", "j:1"]
    assert in_order.due_times(1000) == [1003, 1005, 1005, None]
    assert in_order.reject(0, WHY).position == 3
    assert in_order.sort_by_due_time(1000) == in_order


def test_a_reject_has_the_row_with_its_key_and_without_the_generated_id() -> None:
    rows = Payloads([body("j:x", topic="t", delay=-5)], ["j:x"], [b"17"])
    assert rows.reject(0, WHY).row == '{"key":"17","topic":"t","delay":-5}'


def test_an_empty_row_is_an_object_with_its_key() -> None:
    assert Payloads([body("j:x")], ["j:x"], [b"17"]).reject(0, WHY).row == '{"key":"17"}'


@each_case("value", [b"NaN", b'"\\ud800"', b'"caf\xe9"', b'{"a":' + b"[" * 5000])
def test_a_malformed_reject_has_no_id(value: bytes) -> None:
    rows = Payloads([b'{"id":"j:x","delay":' + value + b"}"], ["j:x"], [b"17"])
    assert rows.reject(0, WHY).row == '{"key":"17","delay":' + decode_readable(value) + "}"


def test_a_malformed_line_is_shown_as_it_is() -> None:
    rows = Payloads([b'{"id":"mine"'], [NO_ID], [None])
    assert rows.reject(0, WHY).row == '{"id":"mine"'


def test_any_key_is_readable() -> None:
    rows = payloads("a", "b", "c", keys=["ä".encode(), b"caf\xe9", None])
    assert [rows.readable_key(position) for position in range(3)] == ["ä", "caf\\xe9", None]
    assert payloads("a").readable_key(0) is None
