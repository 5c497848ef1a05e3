"""The history: what happened in each slot of ten seconds and of five minutes, and the series that are made of it.

A slot is a hash in the store. Its fields have one or two letters, because there are thousands of slots: small letters
are counts, to which every process adds, and capitals are gauges, of which the last value counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from later.core.validation import DAY_MS

Fields = Mapping[str, int]
"""The fields of a slot in which somebody wrote. A count that is missing is 0, a gauge that is missing is not known."""

HOUR_MS = 3_600_000
FULL_AFTER_MS = 3000
"""How long after its end a slot counts as full: processes write what they have counted when it has ended."""
SETTLED_AFTER_MS = 30_000
"""How long after its end nothing more is written into a slot, so that it need not be read again."""
MAX_TOPICS = 50
"""Topics in a slot: the busiest ones."""
TOPIC_KEPT_MS = DAY_MS


class Resolution(NamedTuple):
    """The slots of one length: how long they are kept, how many an answer has at most, and how far it goes back."""

    length_ms: int
    kept_ms: int
    most_slots: int
    default_ms: int

    def slot_of(self, at: int) -> int:
        """Return when (ms) the slot of a moment begins."""
        return at // self.length_ms * self.length_ms

    def last_full(self, now: int) -> int:
        """Return when (ms) the last slot begins that is full at `now` (ms)."""
        return self.slot_of(now - FULL_AFTER_MS) - self.length_ms

    def first_slot(self, since: int, now: int) -> int:
        """Return when (ms) the first slot of an answer begins: that of `since`, or the earliest that the answer has."""
        last = self.last_full(now)
        earliest = last - (self.most_slots - 1) * self.length_ms
        return max(earliest, min(self.slot_of(since), last + self.length_ms))

    def slots_from(self, first: int, now: int) -> int:
        """Return how many slots there are from the one that begins at `first` (ms) to the last full one."""
        return (self.last_full(now) - first) // self.length_ms + 1


SHORT = Resolution(10_000, 2 * HOUR_MS, 360, HOUR_MS)
LONG = Resolution(300_000, 8 * DAY_MS, 2016, DAY_MS)
TOPIC_RESOLUTION = LONG._replace(kept_ms=TOPIC_KEPT_MS, most_slots=TOPIC_KEPT_MS // LONG.length_ms)
"""The slots of topics."""
RESOLUTIONS = {10: SHORT, 300: LONG}
"""The resolutions by the lengths of their slots in seconds."""

# The table of fields. A field never gets another meaning: slots that another version wrote are read for eight days.

PRESENCE = "p"
"""The count of writes. It is written even where nothing happened: a slot without it is one in which nobody ran."""
COUNT_FIELDS = {
    "created": "c",
    "duplicate": "u",
    "refused": "r",
    "done": "d",
    "failed": "f",
    "busy": "b",
    "gone": "g",
    "retries": "y",
}
DEAD_FIELDS = {
    "exhausted": "xe",
    "gone": "xg",
    "busy": "xb",
    "expired": "xp",
    "lost": "xl",
    "body": "xy",
    "address": "xa",
    "rejected": "xr",
    "no callback": "xn",
}
"""The counts of deaths, by their reasons."""
GAUGE_FIELDS = {"due": "D", "delay": "W", "unack": "U", "error": "E", "dead_tasks": "X", "memory": "M"}


class BucketFields(NamedTuple):
    """The fields of a histogram's buckets, each of which counts by itself, and their upper bounds in seconds.

    The last one has no bound.
    """

    fields: tuple[str, ...]
    bounds_s: tuple[float, ...]

    @classmethod
    def named(cls, letter: str, bounds_s: tuple[float, ...]) -> BucketFields:
        """Return those whose names are this letter and a digit of base 36."""
        return cls(tuple(letter + _DIGITS[number] for number in range(len(bounds_s) + 1)), bounds_s)


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LATENESS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    *(60, 120, 300, 600, 900, 1800, 3600),
)  # fmt: skip
_DURATION_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120)
LATENESS_BUCKETS = BucketFields.named("l", _LATENESS_S)
"""The lateness of tasks that nothing held."""
HELD_LATENESS_BUCKETS = BucketFields.named("h", _LATENESS_S)
DURATION_BUCKETS = BucketFields.named("t", _DURATION_S)

# The series

COUNT_SERIES = {
    **{name: (field,) for name, field in COUNT_FIELDS.items()},
    "dead": tuple(DEAD_FIELDS.values()),
    **{f"dead_{reason.replace(' ', '_')}": (field,) for reason, field in DEAD_FIELDS.items()},
}
PERCENTILE_SERIES = {
    f"{name}_p{percent}": (buckets, percent / 100)
    for name, buckets in (
        ("lateness", LATENESS_BUCKETS),
        ("held_lateness", HELD_LATENESS_BUCKETS),
        ("duration", DURATION_BUCKETS),
    )
    for percent in (50, 99)
}
SERIES = (*COUNT_SERIES, *GAUGE_FIELDS, *PERCENTILE_SERIES)
TOPIC_SERIES = ("created", "done", "failed", "busy", "dead", "due")
"""The series of a topic: counts, and how many of its tasks were due when they were counted last."""
TOPIC_COUNTS = TOPIC_SERIES[:-1]


def value_in_slot(series: str, fields: Fields) -> float | None:
    """Return the value of a series in a slot: a count, a gauge, or a percentile in seconds; None if it is not known."""
    if series in GAUGE_FIELDS:
        return fields.get(GAUGE_FIELDS[series])
    if series in COUNT_SERIES:
        return sum(fields.get(field, 0) for field in COUNT_SERIES[series])
    buckets, share = PERCENTILE_SERIES[series]
    return percentile(buckets.bounds_s, [fields.get(field, 0) for field in buckets.fields], share)


def value_to_show(series: str, fields: Fields | None, before: Fields | None) -> float | None:
    """Return the value of a series in a slot as an answer has it; None where nobody wrote.

    A gauge that was not set there has the value of the slot `before`: a census is made every 15 s, so that every third
    slot of 10 s has none. Seconds are rounded to microseconds.
    """
    if fields is None:
        return None
    value = value_in_slot(series, fields)
    if value is None and before is not None and series in GAUGE_FIELDS:
        value = value_in_slot(series, before)
    return round(value, 6) if isinstance(value, float) else value


def percentile(bounds_s: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return the value below which this share of what buckets have counted lies; None if they are empty.

    Within a bucket values are taken to lie evenly, as Prometheus' `histogram_quantile` takes them; of those beyond the
    last bound, that is all that is known.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    for bucket, so_far in enumerate(accumulate(counts)):
        if so_far >= rank and counts[bucket]:
            if bucket == len(bounds_s):
                break
            low = bounds_s[bucket - 1] if bucket else 0.0
            return low + (bounds_s[bucket] - low) * (rank - so_far + counts[bucket]) / counts[bucket]
    return bounds_s[-1]


def growth(before: Fields, after: Fields) -> dict[str, int]:
    """Return by how much counters grew between two reads, without those that did not."""
    return {field: count - before.get(field, 0) for field, count in after.items() if count > before.get(field, 0)}


def busiest_topics(counts: Mapping[str, Sequence[int]], most: int = MAX_TOPICS) -> list[str]:
    """Return the topics in which most has happened."""
    return sorted(counts, key=lambda topic: sum(counts[topic]), reverse=True)[:most]


class TopicRow(NamedTuple):
    """A topic in a slot: the counts of `TOPIC_COUNTS`, and how many of its tasks were due, if somebody counted them."""

    counts: Sequence[int]
    due: int | None

    @classmethod
    def parse(cls, written: bytes) -> TopicRow | None:
        """Return what the script `add_history` wrote: the numbers with spaces between them; None for anything else."""
        *counts, due = written.split(b" ")
        if len(counts) != len(TOPIC_COUNTS) or not all(map(bytes.isdigit, counts)) or not (due.isdigit() or not due):
            return None
        return cls([int(count) for count in counts], int(due) if due else None)

    def value(self, series: str) -> int | None:
        """Return the value of one of `TOPIC_SERIES`."""
        return self.due if series == "due" else self.counts[TOPIC_COUNTS.index(series)]


IDLE_ROW = TopicRow([0] * len(TOPIC_COUNTS), None)
"""A topic that is not among those of a slot that has room for it."""
