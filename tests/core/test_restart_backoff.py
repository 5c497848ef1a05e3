"""Delays between restarts."""

from __future__ import annotations

from later.core.restart_backoff import RESTART_DELAYS_S, STABLE_MS, RestartBackoff

DELAYS_S = (0, *RESTART_DELAYS_S)


def test_the_delay_doubles_with_each_exit_up_to_a_minute() -> None:
    backoff = RestartBackoff(DELAYS_S)
    assert [backoff.next_delay_ms(100) // 1000 for _ in range(10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_process_that_ran_for_a_minute_starts_over() -> None:
    backoff = RestartBackoff(DELAYS_S)
    for _ in range(5):
        backoff.next_delay_ms(STABLE_MS - 1)
    assert [backoff.next_delay_ms(lived) for lived in (STABLE_MS, 0, 0, STABLE_MS, 0)] == [0, 1000, 2000, 0, 1000]
