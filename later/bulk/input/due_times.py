"""Due times of rows, as the rows say them: a topic's default delay is not known here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec


class _Times(msgspec.Struct):
    """The times in a body of `/create`."""

    delay: Any = None
    execute_time: Any = None


_decode = msgspec.json.Decoder(_Times).decode


class DueTimes(NamedTuple):
    """The number of rows that are due at once, and the earliest and latest due time of all rows (Unix ms; None: none).

    The time of a row that is due at once may have passed long ago.
    """

    due_at_once: int = 0
    earliest: int | None = None
    latest: int | None = None

    def add(self, dues: Sequence[float | None], rejected: Collection[int], now: float) -> DueTimes:
        """Return the same with more rows, whose times are `dues` (Unix seconds), except those at rejected positions."""
        accepted = dues if not rejected else [due for i, due in enumerate(dues) if i not in rejected]
        known = [due for due in accepted if due is not None]
        if not known:
            return self
        earliest, latest = _to_ms(min(known)), _to_ms(max(known))
        return DueTimes(
            self.due_at_once + sum(due <= now for due in known),
            earliest if self.earliest is None else min(earliest, self.earliest),
            latest if self.latest is None else max(latest, self.latest),
        )


def due_times(delays: Sequence[Any] | None, times: Sequence[Any] | None, count: int, now: float) -> list[float | None]:
    """Return when each of `count` rows is due, in Unix seconds; None for values that are not numbers."""
    if delays is None and times is None:
        return [now] * count
    if times is None and delays is not None:
        try:
            return [now + delay for delay in delays]  # the usual case is a column of numbers: five times as fast
        except TypeError:
            pass
    nulls = [None] * count
    return [_due_time(*row, now) for row in zip(delays or nulls, times or nulls, strict=True)]


def due_times_of_bodies(bodies: Sequence[bytes], now: float) -> list[float | None]:
    """Return when each task is due that a body of `/create` describes; None for a body that is malformed."""
    dues: list[float | None] = []
    for body in bodies:
        try:
            times = _decode(body)
        except (ValueError, RecursionError):
            dues.append(None)
        else:
            dues.append(_due_time(times.delay, times.execute_time, now))
    return dues


def _due_time(delay: Any, execute_time: Any, now: float) -> float | None:
    try:
        if execute_time is not None:
            return _to_float(execute_time)
        return now if delay is None else now + _to_float(delay)
    except (ValueError, TypeError, OverflowError):
        return None


def _to_float(value: Any) -> float:
    return float(bytes(value) if isinstance(value, msgspec.Raw) else value)


def _to_ms(seconds: float) -> int:
    return round(seconds * 1000)
