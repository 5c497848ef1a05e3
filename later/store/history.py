"""The history in the store: slots of counts and gauges, the busiest topics of each five minutes, sampled deliveries.

It is a picture, not an account: no write is repeated, because its outcome may be unknown, and all keys have a TTL.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from later.core.delivery_sample import SampledDelivery
from later.core.history import (
    IDLE_ROW,
    LONG,
    MAX_TOPICS,
    PRESENCE,
    SETTLED_AFTER_MS,
    SHORT,
    TOPIC_COUNTS,
    TOPIC_KEPT_MS,
    Fields,
    Resolution,
    TopicRow,
    busiest_topics,
)
from later.core.validation import DAY_MS
from later.store import scripts
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.scripts import Argument, Command

MAX_DELIVERIES = 2000
"""Sampled deliveries that the store keeps."""
DELIVERIES_KEPT_MS = DAY_MS
DUE_COUNTED = b"2"
"""The value of the field '' of a slot's topics if due tasks were counted."""
SLICE = 60
"""Slots read in one round trip, which take the store and this process about a millisecond."""
DELIVERIES_SLICE = 500
"""Deliveries read in one round trip."""
_INTEGER = re.compile(rb"-?[0-9]{1,18}")

_encode = msgspec.msgpack.Encoder().encode
_delivery_decoder = msgspec.msgpack.Decoder(SampledDelivery)
_decode_fields = msgspec.msgpack.Decoder(dict[str, int]).decode
_decode_topics = msgspec.msgpack.Decoder(dict[str, bytes]).decode


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryEntry:
    """An addition to a slot: what was counted, or how many of something there are, by the fields of `core/history`.

    `topics` has the five counts of each topic, and `due_tasks` how many tasks of a topic are due, of all topics that
    have such tasks; None if nobody has counted them now. At most `MAX_TOPICS` of both are written. `deliveries` are
    those of the sample, the oldest first.
    """

    counts: Fields = field(default_factory=dict)
    gauges: Fields = field(default_factory=dict)
    topics: Mapping[str, Sequence[int]] = field(default_factory=dict)
    due_tasks: Mapping[str, int] | None = None
    deliveries: Sequence[SampledDelivery] = ()


class HistoryStore:
    """Adds to the history, and reads it. A slot that is past is read once. Every method raises StoreDown."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._slots = {
            resolution.length_ms: _PastSlots(resolution.kept_ms, _encode_fields) for resolution in (SHORT, LONG)
        }
        self._topics = _PastSlots(TOPIC_KEPT_MS, _encode_topics)
        self._reading = asyncio.Lock()

    async def add(self, at: int, now: int, entry: HistoryEntry) -> None:
        """Add to the slots of the moment `at` (ms). A slot that would not be kept any longer is left alone.

        After StoreDown it must not be repeated: it may have been added.
        """
        short, long = SHORT.slot_of(at), LONG.slot_of(at)
        lives = (
            short + SHORT.length_ms + SHORT.kept_ms - now,
            long + LONG.length_ms + LONG.kept_ms - now,
            long + LONG.length_ms + TOPIC_KEPT_MS - now,
            DELIVERIES_KEPT_MS,
        )
        keys = [
            self._keys.history(SHORT.length_ms, short),
            self._keys.history(LONG.length_ms, long),
            self._keys.history_topics(long),
            self._keys.sampled_deliveries,
        ]
        arguments: list[Argument] = [
            *(max(life_ms, 0) for life_ms in lives),
            MAX_TOPICS,
            MAX_DELIVERIES,
            int(entry.due_tasks is not None),
            *_section({PRESENCE: 1, **entry.counts}.items()),
            *_section(entry.gauges.items()),
            *_section(_topic_rows(entry)),
            *map(_encode, entry.deliveries),
        ]
        await self._client.execute("add_history", scripts.ADD_HISTORY.call(keys, arguments))

    async def read(self, resolution: Resolution, first: int, now: int) -> list[Fields | None]:
        """Return the slots from the one that begins at `first` to the last full one; None where nobody wrote."""
        slots = range(first, resolution.last_full(now) + 1, resolution.length_ms)
        past = self._slots[resolution.length_ms]
        keys = [self._keys.history(resolution.length_ms, slot) for slot in slots]
        written = await self._read_slots(slots, keys, resolution, past, now)
        found: list[Fields | None] = []
        for number, slot in enumerate(written, 1):
            found.append(_decode_fields(slot) if slot else None)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return found

    async def read_last(self, now: int) -> tuple[int, Fields | None]:
        """Return when (ms) the last full slot of ten seconds begins, and the slot; None if nobody wrote there."""
        first = SHORT.last_full(now)
        [fields] = await self.read(SHORT, first, now)
        return first, fields

    async def read_topic(self, topic: str, first: int, now: int) -> list[TopicRow | None]:
        """Return a topic's part of the slots of five minutes from `first` to the last full one.

        None where nobody wrote, or where it was not among the busiest topics.
        """
        slots = range(first, LONG.last_full(now) + 1, LONG.length_ms)
        keys = [self._keys.history_topics(slot) for slot in slots]
        rows: list[TopicRow | None] = []
        for number, written in enumerate(await self._read_slots(slots, keys, LONG, self._topics, now), 1):
            rows.append(_row_of(topic, _decode_topics(written)) if written else None)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return rows

    async def deliveries(self) -> AsyncGenerator[list[SampledDelivery]]:
        """Yield the sampled deliveries in slices, each once, those that were added last first.

        What another version has written in another form is passed over.
        """
        last: set[bytes] = set()
        for start in range(0, MAX_DELIVERIES, DELIVERIES_SLICE):
            command = ("LRANGE", self._keys.sampled_deliveries, start, start + DELIVERIES_SLICE - 1)
            written = await self._client.execute("read_history", command)
            # What is added meanwhile moves the others on, and some of the last slice into this one.
            new = dict.fromkeys(entry for entry in written if entry not in last)
            last = {*written}
            yield [delivery for entry in new if (delivery := _decode_delivery(entry)) is not None]
            if len(written) < DELIVERIES_SLICE:
                return

    async def _read_slots(
        self, slots: Sequence[int], keys: Sequence[bytes], resolution: Resolution, past: _PastSlots, now: int
    ) -> list[bytes]:
        """Return what slots hold, encoded; b"" where nobody wrote. Callers at the same time share what one reads."""
        async with self._reading:
            settled = now - resolution.length_ms - SETTLED_AFTER_MS
            found = {slot: past.slots[slot] for slot in slots if slot <= settled and slot in past.slots}
            missing = [(slot, key) for slot, key in zip(slots, keys, strict=True) if slot not in found]
            for start in range(0, len(missing), SLICE):
                some = missing[start : start + SLICE]
                commands: list[Command] = [("HGETALL", key) for _, key in some]
                answers = await self._client.execute_all("read_history", commands)
                for (slot, _), answer in zip(some, answers, strict=True):
                    found[slot] = past.encode(answer) if answer else b""
                    if slot <= settled:
                        past.slots[slot] = found[slot]
            if missing:
                past.forget(now, settled)
        return [found[slot] for slot in slots]


class _PastSlots:
    """Slots in which nothing changes any more, by their beginnings (ms): encoded, at a tenth of the size."""

    def __init__(self, kept_ms: int, encode: Callable[[Mapping[bytes, bytes]], bytes]) -> None:
        self.slots: dict[int, bytes] = {}
        self.encode = encode
        self._kept_ms = kept_ms

    def forget(self, now: int, settled: int) -> None:
        """Forget the slots that the store does not keep any longer, and those that a clock set back brings again."""
        for slot in [slot for slot in self.slots if not now - self._kept_ms <= slot <= settled]:
            del self.slots[slot]


def _decode_delivery(written: bytes) -> SampledDelivery | None:
    try:
        return _delivery_decoder.decode(written)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _encode_fields(fields: Mapping[bytes, bytes]) -> bytes:
    """Return the fields that are whole numbers, encoded: another version may have others."""
    return _encode({name.decode(): int(value) for name, value in fields.items() if _INTEGER.fullmatch(value)})


def _encode_topics(topics: Mapping[bytes, bytes]) -> bytes:
    return _encode({topic.decode(): row for topic, row in topics.items()})


def _row_of(topic: str, topics: dict[str, bytes]) -> TopicRow | None:
    """Return a topic's row among those of a slot. Where there is room for more, one that is missing was idle."""
    marker = topics.pop("", b"")
    if topic not in topics and len(topics) >= MAX_TOPICS:
        return None
    row = TopicRow.parse(topics[topic]) if topic in topics else IDLE_ROW
    if row is None or len(topics) >= MAX_TOPICS:
        return row
    return row._replace(due=0) if row.due is None and marker == DUE_COUNTED else row


def _topic_rows(entry: HistoryEntry) -> list[tuple[Argument, ...]]:
    """Return the topics to write, with their counts and how many tasks are due."""
    due, idle = entry.due_tasks or {}, [0] * len(TOPIC_COUNTS)
    busy = busiest_topics(entry.topics)
    late = sorted(due.keys() - set(busy), key=lambda topic: due[topic], reverse=True)[: MAX_TOPICS - len(busy)]
    return [(topic, *entry.topics.get(topic, idle), due.get(topic, "")) for topic in (*busy, *late)]


def _section(rows: Iterable[tuple[Argument, ...]]) -> list[Argument]:
    """Return the rows as a section of the script's arguments: how many arguments follow, and these."""
    flat = [argument for row in rows for argument in row]
    return [len(flat), *flat]
