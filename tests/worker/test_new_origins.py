"""Origins without calls: what is known of their last one, and the turns of new ones."""

from __future__ import annotations

from later.core.origin import Origin
from later.worker.new_origins import MAX_KNOWN, MAX_NEXT, SLOW_MS, WELL_MS, NewOriginPace, OriginHistory
from tests.builders import NOW
from tests.cases import each_case

INTERVAL_MS = 400


def an_origin(number: int) -> Origin:
    return Origin("http", f"host-{number}.example", 80)


def known(history: OriginHistory, origin: Origin, now: int) -> tuple[bool, bool]:
    return history.is_well("order", origin, now), history.is_slow("order", origin, now)


@each_case(("was_prompt", "kept_ms"), [(True, WELL_MS), (False, SLOW_MS)])
def test_how_the_last_call_went_is_known_for_a_while_and_of_no_more_than_a_thousand(
    was_prompt: bool, kept_ms: int
) -> None:
    history = OriginHistory()
    for number in range(MAX_KNOWN + 1):
        history.add("order", an_origin(number), NOW, was_prompt=was_prompt)
    assert known(history, an_origin(0), NOW) == (False, False)
    assert known(history, an_origin(1), NOW + kept_ms - 1) == (was_prompt, not was_prompt)
    assert known(history, an_origin(1), NOW + kept_ms) == (False, False)


@each_case(("was_prompt", "expected"), [(True, (True, False)), (False, (False, True)), (None, (False, False))])
def test_only_the_last_call_counts(was_prompt: bool | None, expected: tuple[bool, bool]) -> None:
    for before in (True, False):
        history = OriginHistory()
        history.add("order", an_origin(1), NOW, was_prompt=before)
        history.add("order", an_origin(1), NOW, was_prompt=was_prompt)
        assert known(history, an_origin(1), NOW) == expected


def test_new_origins_have_a_turn_in_each_interval() -> None:
    pace = NewOriginPace(NOW)
    times = [
        now - NOW
        for now in range(NOW, NOW + 10 * INTERVAL_MS, 10)
        if pace.admits(an_origin(now), now, INTERVAL_MS, waited=False)
    ]
    assert times == [*range(0, 10 * INTERVAL_MS, INTERVAL_MS)]


def test_two_turns_are_saved_of_which_one_is_for_an_origin_that_did_not_wait() -> None:
    pace, now = NewOriginPace(NOW), NOW + 100 * INTERVAL_MS
    assert pace.admits(an_origin(1), now, INTERVAL_MS, waited=True)
    assert not pace.admits(an_origin(2), now, INTERVAL_MS, waited=True)
    assert pace.admits(an_origin(3), now, INTERVAL_MS, waited=False)
    assert not pace.admits(an_origin(4), now, INTERVAL_MS, waited=False)


def test_of_origins_that_came_too_soon_the_last_one_comes_first() -> None:
    pace = NewOriginPace(NOW)
    origins = [an_origin(number) for number in range(MAX_NEXT + 2)]
    for origin in origins:
        pace.admits(origin, NOW, INTERVAL_MS, waited=False)
    order = []
    for turn in range(1, MAX_NEXT + 1):
        now = NOW + turn * INTERVAL_MS
        order += [origin for origin in origins if pace.admits(origin, now, INTERVAL_MS, waited=True)]
    assert order == origins[: -MAX_NEXT - 1 : -1]
