"""A process that died is started again: at once, and then more and more slowly."""

from __future__ import annotations

from later.processes.pauses import STEADY_MS, RestartBackoff


def test_the_first_death_costs_no_pause_and_each_further_one_twice_as_much_up_to_a_minute() -> None:
    pauses = RestartBackoff()
    assert [pauses.delay_after(100) // 1000 for _ in range(10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_process_that_was_steady_for_a_minute_starts_over() -> None:
    pauses = RestartBackoff()
    for _ in range(5):
        pauses.delay_after(STEADY_MS - 1)
    assert [pauses.delay_after(lived) for lived in (STEADY_MS, 0, 0, STEADY_MS, 0)] == [0, 1000, 2000, 0, 1000]
