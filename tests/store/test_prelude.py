"""The functions that the Lua scripts share, each called by itself in a real store."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

import later
from later.store.holds import held_until, hold_entry, is_held
from later.store.keys import expiry_member
from later.store.scripts import PRELUDE
from tests.builders import NOW
from tests.store.inspection import ask
from tests.store_fixture import StoreFixture

WAKE, BUCKET, TOPIC = "wake", "bucket", "order"
ENTRIES = [
    hold_entry(NOW),
    hold_entry(NOW, for_rate=True),
    hold_entry(None),
    NOW,
    0,
]
"""A hold, a hold for a rate, a pause, a moment, and the first of all moments."""


async def run(store: StoreFixture, body: str, *arguments: object) -> Any:
    """Run Lua behind the prelude; the keys are the wake set and the bucket."""
    code = f"{PRELUDE}\nlocal wake, bucket = KEYS[1], KEYS[2]\n{body}"
    [answer] = await ask(store, [("EVAL", code, 2, WAKE, BUCKET, *map(str, arguments))])
    if isinstance(answer, Exception):
        raise answer
    return answer


async def fill(store: StoreFixture, scores: dict[str, int], wake: float | None = None) -> None:
    for id, score in scores.items():
        await store.redis.zadd(BUCKET, {id: score})
    if wake is not None:
        await store.redis.zadd(WAKE, {TOPIC: wake})


async def wake_entry(store: StoreFixture) -> float | None:
    score = await store.redis.zscore(WAKE, TOPIC)
    return None if score is None else float(score)


@pytest.mark.one_server
class TestHolds:
    @pytest.mark.parametrize("until", [NOW, None])
    @pytest.mark.parametrize("for_rate", [False, True])
    async def test_hold_entry_is_the_same_in_lua_and_python(
        self, store: StoreFixture, until: int | None, for_rate: bool
    ) -> None:
        moment = "inf" if until is None else until
        entry = await run(store, "return hold_entry(tonumber(ARGV[1]), ARGV[2] == 'True')", moment, for_rate)
        assert float(entry) == hold_entry(until, for_rate=for_rate)

    @pytest.mark.parametrize("entry", ENTRIES)
    @pytest.mark.parametrize("now", [None, NOW - 1, NOW, NOW + 1])
    async def test_is_held_is_the_same_in_lua_and_python(
        self, store: StoreFixture, entry: float, now: int | None
    ) -> None:
        held = await run(store, "return is_held(ARGV[1], tonumber(ARGV[2])) and 1 or 0", repr(entry), now or "")
        assert bool(held) == is_held(entry, now)

    async def test_a_topic_without_an_entry_is_not_held(self, store: StoreFixture) -> None:
        assert await run(store, "return is_held(redis.call('ZSCORE', wake, 'order')) and 1 or 0") == 0

    @pytest.mark.parametrize("entry", ENTRIES[:3])
    async def test_held_until_is_the_same_in_lua_and_python(self, store: StoreFixture, entry: float) -> None:
        ends = float(await run(store, "return tostring(held_until(ARGV[1]))", repr(entry)))
        assert (None if ends == math.inf else ends) == held_until(entry)

    @pytest.mark.parametrize(("entry", "for_rate"), list(zip(ENTRIES[:3], [0, 1, 0], strict=True)))
    async def test_only_a_hold_for_a_rate_is_for_a_rate(self, store: StoreFixture, entry: float, for_rate: int) -> None:
        body = "local _, for_rate = held_until(ARGV[1]) return for_rate and 1 or 0"
        assert await run(store, body, repr(entry)) == for_rate


@pytest.mark.one_server
class TestWakeEntries:
    async def test_refresh_wake_takes_the_first_score(self, store: StoreFixture) -> None:
        await fill(store, {"a": 7, "b": 3}, wake=99)
        assert await run(store, "return refresh_wake(wake, bucket, 'order')") == b"3"
        assert await wake_entry(store) == 3

    async def test_refresh_wake_removes_the_entry_of_an_empty_bucket(self, store: StoreFixture) -> None:
        await fill(store, {}, wake=99)
        await run(store, "return refresh_wake(wake, bucket, 'order')")
        assert await wake_entry(store) is None

    @pytest.mark.parametrize(("before", "after"), [(-5, -5), (5, 5), (1, 3), (None, 3)])
    async def test_refresh_wake_keeping_turn_keeps_holds_and_turns(
        self, store: StoreFixture, before: int | None, after: int
    ) -> None:
        await fill(store, {"a": 3}, wake=before)
        await run(store, "refresh_wake_keeping_turn(wake, bucket, 'order')")
        assert await wake_entry(store) == after

    @pytest.mark.parametrize(
        ("scores", "wake", "fault"),
        [
            ({"a": 3}, 3, b""),
            ({"a": 3}, 5, b""),
            ({"a": 3}, -5, b""),
            ({"a": 3}, None, b"missing"),
            ({"a": 3}, 2, b"wrong"),
            ({}, 3, b"stale"),
            ({}, None, b""),
        ],
    )
    async def test_wake_fault_names_what_is_wrong(
        self, store: StoreFixture, scores: dict[str, int], wake: int | None, fault: bytes
    ) -> None:
        await fill(store, scores, wake)
        assert await run(store, "return wake_fault(wake, bucket, 'order', '9')") == fault


@pytest.mark.one_server
class TestTasks:
    async def test_expiry_member_is_the_same_in_lua_and_python(self, store: StoreFixture) -> None:
        assert await run(store, "return expiry_member('order', 'a')") == expiry_member(b"order", b"a")

    @pytest.mark.parametrize(
        ("entry", "parsed"), [("3 17", [3, b"17"]), ("3 17 5f", [3, b"17"]), ("x", [0]), ("", [0])]
    )
    async def test_begun_and_fence_reads_an_entry_of_attempts(
        self, store: StoreFixture, entry: str, parsed: list[Any]
    ) -> None:
        assert await run(store, "return {begun_and_fence(ARGV[1] ~= '' and ARGV[1])}", entry) == parsed

    async def test_read_states_returns_a_row_for_each_key(self, store: StoreFixture) -> None:
        await fill(store, {"a": 3})
        body = "return {read_states({'a', 'b'}, bucket, 'u', 'e', 'd', 'attempts', 'outcome')}"
        first, *others = await run(store, body)
        assert (float(first[0]), first[1]) == (3, None)
        assert others == [[None, None]] * 5


@pytest.mark.one_server
class TestOrder:
    @pytest.mark.parametrize(
        ("id", "other"), [("b", "a"), ("aa", "a"), ("\x80", "a"), ("a", "B")], ids=["later", "longer", "high", "case"]
    )
    async def test_sorts_after_compares_bytes(self, store: StoreFixture, id: str, other: str) -> None:
        body = "return {sorts_after(ARGV[1], ARGV[2]) and 1 or 0, sorts_after(ARGV[2], ARGV[1]) and 1 or 0}"
        assert await run(store, body, id, other) == [1, 0]

    @pytest.mark.parametrize(("score", "id", "count"), [(1, "z", 0), (2, "b", 2), (2, "bb", 2), (3, "a", 4)])
    async def test_count_up_to_counts_in_the_buckets_order(
        self, store: StoreFixture, score: int, id: str, count: int
    ) -> None:
        await fill(store, {"a": 2, "b": 2, "c": 2, "d": 2})
        assert await run(store, "return count_up_to(bucket, ARGV[1], ARGV[2])", score, id) == count

    @pytest.mark.parametrize(
        ("since", "before", "after", "ranks"),
        [
            ("-inf", "+inf", ("", ""), [0, 3]),
            ("2", "4", ("", ""), [1, 2]),
            ("-inf", "+inf", ("2", "b"), [2, 3]),
            ("9", "+inf", ("", ""), [4, 3]),
        ],
    )
    async def test_rank_range_returns_the_first_and_the_last_rank(
        self, store: StoreFixture, since: str, before: str, after: tuple[str, str], ranks: list[int]
    ) -> None:
        await fill(store, {"a": 1, "b": 2, "c": 3, "d": 4})
        body = "return {rank_range(bucket, ARGV[1], ARGV[2], ARGV[3], ARGV[4])}"
        assert await run(store, body, since, before, *after) == ranks


def test_only_the_prelude_and_one_module_know_the_sign_of_a_hold() -> None:
    """The sign is read or written by infinities, half a millisecond, a range below zero, a comparison with zero."""
    signs = re.compile(r"""-math\.(huge|inf)|0\.5 -|["'](\(0|-inf)["'], *["']\(?-inf|entry\)? *(<|>=) *0""")
    files = [file for file in (Path(later.__file__).parent / "store").rglob("*") if file.suffix in {".py", ".lua"}]
    assert {file.name for file in files if signs.search(file.read_text("utf-8"))} == {"prelude.lua", "holds.py"}
