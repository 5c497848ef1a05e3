"""Ids that sort in the order in which they were made: UUIDs of version 7 (RFC 9562, section 5.7).

Tasks of one due time are in the order of their ids in a bucket, so consumers get those that one process created in the
order in which it did.
"""

from __future__ import annotations

COUNTER_SIZE = 4096
"""Values of the counter, which takes the 12 bits after the time (RFC 9562, section 6.2, method 1)."""


class _LastId:
    """The time (ms) and the counter of the last id of this process."""

    at = 0
    count = 0


def order_id(random_id: str, now: int) -> str:
    """Return a UUID of version 7 made at `now` (ms), with the last 62 bits of a UUID of version 4.

    It sorts after every id that this process has made before. If the clock goes back, or the counter of a ms is used
    up, the id's time goes on from the last one's: then it may be ahead of `now`.
    """
    last = _LastId
    if now > last.at:
        last.at, last.count = now, 0
    else:
        last.count += 1
        if last.count == COUNTER_SIZE:
            last.at, last.count = last.at + 1, 0
    time = f"{last.at:012x}"
    return f"{time[:8]}-{time[8:]}-7{last.count:03x}-{random_id[19:]}"
