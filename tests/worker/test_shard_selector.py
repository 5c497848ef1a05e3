"""Which shards a worker looks at: its own, others in turn, and all whenever its list of workers may be wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from later.core.shard_owners import CensusBacklog, assign_shards
from later.worker.shard_selector import FULL_MS, LIST_MS, SOON_MS, TURN_PARTS, ShardSelector, WorkerList
from tests.builders import NOW

TICK_MS = 100
SHARDS = 64


def a_selector(
    *owned: int, workers: int = 20, at: int = NOW, backlog: CensusBacklog | None = None, name: str = ""
) -> ShardSelector:
    selector = ShardSelector(SHARDS, tick_ms=TICK_MS, name=name)
    selector.use_list(WorkerList(workers, owned, at), backlog)
    return selector


def tick(selector: ShardSelector, now: int, *, free: bool = True) -> set[int]:
    """Let the selector select the shards of a tick that claims nothing."""
    shards = selector.for_delay(now, has_free_slots=free)
    if free:
        selector.note_end(now, claimed=(), left=())
    else:
        selector.note_look(now)
    return set(range(SHARDS)) if shards is None else set(shards)


def test_without_a_list_of_workers_all_shards_are_looked_at() -> None:
    selector = ShardSelector(SHARDS)
    assert selector.for_delay(NOW, has_free_slots=True) is None
    assert selector.seen(NOW) is selector.for_upkeep("expiry", NOW) is None
    assert selector.owned == SHARDS


@pytest.mark.parametrize("moved_ms", [LIST_MS, -LIST_MS, 3_600_000, -3_600_000])
def test_an_old_list_counts_for_nothing_and_neither_does_one_from_before_the_clock_was_moved(moved_ms: int) -> None:
    selector = a_selector(1, 2)
    assert selector.for_delay(NOW + moved_ms, has_free_slots=True) is None
    assert selector.seen(NOW + moved_ms) is None
    assert selector.for_upkeep("dead", NOW + moved_ms) is None


def test_a_list_that_cannot_be_read_counts_for_nothing() -> None:
    selector = a_selector(1, 2)
    selector.use_list(None, None)
    assert selector.for_delay(NOW, has_free_slots=True) is None


def test_a_worker_looks_at_its_own_shards_in_each_tick_and_at_each_other_one_within_6_4_seconds() -> None:
    selector = a_selector(3, 17, 40)
    seen = Counter[int]()
    for number in range(TURN_PARTS):
        selector.use_list(WorkerList(20, (3, 17, 40), NOW + TICK_MS * number), None)
        shards = tick(selector, NOW + TICK_MS * number)
        assert len(shards) == 4
        seen.update(shards)
    assert seen[3] == seen[17] == seen[40] == TURN_PARTS
    assert set(seen) == set(range(SHARDS))


def test_ticks_that_come_faster_take_no_more_turns() -> None:
    selector = a_selector(3)
    assert sum(len(tick(selector, NOW + number)) - 1 for number in range(1000)) <= 14


def test_a_hundred_workers_take_turns_a_fifth_as_often() -> None:
    selector = a_selector(3, workers=100)
    assert sum(len(tick(selector, NOW + TICK_MS * number)) - 1 for number in range(50)) == 10


def test_a_worker_that_owns_many_shards_sees_the_few_others_soon() -> None:
    selector = a_selector(*range(40), workers=3)
    seen = set[int]().union(*(tick(selector, NOW + TICK_MS * number) for number in range(3)))
    assert seen == set(range(SHARDS))


def test_a_worker_without_free_slots_looks_at_its_own_shards_only() -> None:
    selector = a_selector(3, 17, backlog=CensusBacklog(NOW, NOW - 60_000))
    assert [tick(selector, NOW + TICK_MS * number, free=False) for number in range(3)] == [{3, 17}] * 3


def test_a_worker_whose_slots_were_full_is_not_idle_and_goes_on_where_due_tasks_were_left() -> None:
    selector = a_selector(3, workers=100, backlog=CensusBacklog(NOW, NOW - 60_000))
    selector.for_delay(NOW, has_free_slots=True)
    selector.note_end(NOW, claimed={3, 9}, left={9})
    assert tick(selector, NOW + 10, free=False) == {3}
    assert selector.looked_at == NOW + 10
    assert tick(selector, NOW + 20) == {3, 9}


def test_a_worker_is_full_when_no_tick_has_had_free_slots_for_a_second() -> None:
    selector, is_full = a_selector(3), list[bool]()
    for after_ms, free in [(0, True), (FULL_MS - 1, False), (FULL_MS, False), (FULL_MS + 10, True)]:
        tick(selector, NOW + after_ms, free=free)
        is_full.append(selector.is_full)
    assert is_full == [False, False, True, False]


# Tasks of this process


def test_the_shards_of_new_tasks_are_looked_at_when_these_are_due() -> None:
    selector = a_selector(3, workers=100)
    tick(selector, NOW)
    assert selector.needs_note(NOW + SOON_MS)
    assert not selector.needs_note(NOW + SOON_MS + 1)
    selector.note_created(NOW + 50, [9, 3, 30])
    assert {9, 30} <= tick(selector, NOW + 50)
    assert tick(selector, NOW + 51) == {3}


def test_a_worker_that_looks_at_all_shards_needs_no_notes_of_new_tasks() -> None:
    selector = ShardSelector(SHARDS)
    tick(selector, NOW)
    assert not selector.needs_note(NOW)


def test_all_shards_are_looked_at_when_tasks_are_due_that_may_be_in_any() -> None:
    selector = a_selector(3, workers=100)
    tick(selector, NOW)
    selector.note_created(NOW + 50, None)
    assert tick(selector, NOW + 49) == {3}
    assert selector.for_delay(NOW + 50, has_free_slots=True) is None
    assert selector.seen(NOW + 51) == [*range(SHARDS)]


# Others' work


def test_a_shard_in_which_due_tasks_were_left_is_followed_until_nothing_is_claimed_there() -> None:
    selector = a_selector(3, workers=100)
    selector.for_delay(NOW, has_free_slots=True)
    selector.note_end(NOW, claimed={3, 9, 10}, left={3, 9})
    assert tick(selector, NOW + 10) == {3, 9}
    assert tick(selector, NOW + 20) == {3}


def test_shards_that_were_looked_at_are_those_of_the_tickers_that_the_delay_ticker_wakes() -> None:
    selector = a_selector(3)
    shards = tick(selector, NOW)
    assert selector.seen(NOW + 500) == sorted(shards)
    assert selector.seen(NOW + 1500) == [3]


def test_an_idle_worker_looks_at_all_shards_a_few_times_while_others_have_a_backlog() -> None:
    selector = a_selector(3, backlog=CensusBacklog(NOW, NOW - 5000))
    whole = list[int]()
    for number in range(2000):
        now = NOW + TICK_MS * number
        selector.use_list(WorkerList(20, (3,), now), CensusBacklog(now, NOW - 5000))
        if len(tick(selector, now)) == SHARDS:
            whole.append(number)
    assert whole == [1, 3, 7, 15, 31, 63, 127]


def test_an_idle_worker_steals_by_the_census_of_a_million_topics() -> None:
    """It takes three minutes, and is the latest one until the next has ended: eight minutes after it began."""
    selector = a_selector(3, backlog=CensusBacklog(NOW - 490_000, NOW - 500_000))
    assert [len(tick(selector, NOW + TICK_MS * number)) == SHARDS for number in range(3)] == [False, True, False]


def test_an_idle_worker_looks_at_all_shards_again_once_it_has_claimed_of_another() -> None:
    selector = a_selector(3, backlog=CensusBacklog(NOW, NOW - 5000))
    assert [len(tick(selector, NOW + TICK_MS * number)) == SHARDS for number in range(3)] == [False, True, False]
    selector.for_delay(NOW + 300, has_free_slots=True)
    selector.note_end(NOW + 300, claimed={50}, left=())
    assert len(tick(selector, NOW + 400)) < SHARDS
    assert len(tick(selector, NOW + 500)) == SHARDS


@pytest.mark.parametrize(
    "backlog",
    [
        None,
        CensusBacklog(NOW, None),
        CensusBacklog(NOW, NOW - 100),
        CensusBacklog(NOW - 600_000, NOW - 720_000),
        CensusBacklog(NOW + 90_000, NOW),
    ],
    ids=["no census", "nothing due", "due a moment ago", "long ago", "of another clock"],
)
def test_an_idle_worker_looks_at_few_shards_while_others_have_no_backlog(backlog: CensusBacklog | None) -> None:
    selector = a_selector(3, backlog=backlog)
    assert [len(tick(selector, NOW + TICK_MS * number)) for number in range(5)] == [2] * 5


# Upkeep


def test_each_other_ticker_sees_all_shards_in_6_4_seconds_however_often_it_runs() -> None:
    for interval_ms in (100, 500, 1000, 5000):
        selector, seen = a_selector(3), set[int]()
        selector.for_upkeep("expiry", NOW)
        for now in range(NOW + interval_ms, NOW + 6400 + interval_ms, interval_ms):
            selector.use_list(WorkerList(20, (3,), now), None)
            seen.update(selector.for_upkeep("expiry", now) or ())
        assert seen == set(range(SHARDS))


# A fleet


def looks_per_s(workers: int, shards: int, seconds: int = 10) -> float:
    """Return at how many shards idle workers look in a second."""
    names = [f"host-{number}:1:{number:04x}" for number in range(workers)]
    looks = 0
    for name, owned in assign_shards(names, shards).items():
        selector = ShardSelector(shards, tick_ms=TICK_MS, name=name)
        for now in range(NOW, NOW + 1000 * seconds, TICK_MS):
            selector.use_list(WorkerList(workers, owned, now), None)
            selected = selector.for_delay(now, has_free_slots=True)
            looks += shards if selected is None else len(selected)
            selector.note_end(now, claimed=(), left=())
    return looks / seconds


def test_a_hundred_idle_workers_look_at_256_shards_six_thousand_times_a_second() -> None:
    assert 5120 <= looks_per_s(100, 256) <= 6000


def test_a_stopped_worker_says_no_more_that_it_looks() -> None:
    selector = a_selector(3)
    tick(selector, NOW)
    assert selector.looked_at == NOW
    selector.stop()
    tick(selector, NOW + 100)
    assert selector.looked_at is None
