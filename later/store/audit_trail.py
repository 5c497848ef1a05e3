"""The audit trail: each event is a line of the log at once, and soon an entry of a stream in the store.

No action waits for its entry or fails because of it: `record` only keeps the event, and `flush` writes what was kept.
While the store is away, the latest events are kept, and the log has them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec
import structlog

from later.core.audit_event import AUDIT_LOGGER, KEY_ACTIONS, AuditEvent
from later.core.clock import Clock
from later.core.errors import LaterError
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.scripts import Command

MAX_EVENTS = 10_000
"""Events that the store keeps; up to a node of the stream more, because it is trimmed by whole nodes (`MAXLEN ~`)."""
MAX_WAITING = 1_000
"""Events that a process keeps while the store is away."""
MAX_WRITTEN = 100
"""Events written in one round trip."""
PAGE_SIZE = 1_000
MAX_TIME_MS = 2**42
"""The year 2109: the time of an event is below it, or is not its time."""
UNREADABLE = "unreadable entry"
"""The event of an entry that later did not write."""

_audit_log = logging.getLogger(AUDIT_LOGGER)
log = structlog.get_logger("later.audit_trail")
_encode = msgspec.json.Encoder().encode


class AuditEntry(NamedTuple):
    """An event of the trail: when it happened (ms of the store's clock), and its fields as JSON."""

    at: int
    fields: dict[str, Any]


class AuditTrail:
    """Records events, and reads them back. `on_record`, if it is set, is called when there is something to flush.

    So is `on_event`, with each event.
    """

    def __init__(self, client: StoreClient, keys: Keys, clock: Clock) -> None:
        self._client = client
        self._key = keys.audit_trail
        self._clock = clock
        self._waiting: deque[tuple[int | None, AuditEvent]] = deque()
        """Events, each with its time (ms of the store's clock) if that was known."""
        self._dropped = 0
        self._written_last: AuditEvent | None = None
        """The event written last, until a flush finds nothing to write."""
        self._write_task: asyncio.Task[int] | None = None
        self.on_record: Callable[[], None] | None = None
        self.on_event: Callable[[AuditEvent], None] | None = None

    def record(self, event: AuditEvent) -> None:
        """Log an event, and keep it for `flush`. It never waits and never raises.

        The process must be one that flushes: a daemon does so by a ticker and at its stop, a command when it closes the
        store (`run_with_store`). Further requests of the same purge or redrive become one event, and wait for the next
        tick.
        """
        _audit_log.info(event.as_fields())
        if self.on_event is not None:
            self.on_event(event)
        at, previous = self._waiting[-1] if self._waiting else (None, None)
        together = None if previous is None else previous.merge(event)
        if together is not None:
            self._waiting[-1] = (at, together)
            return
        self._waiting.append((self._clock.now().low if self._clock.is_steady() else None, event))
        self._drop_oldest()
        continues = self._written_last is not None and self._written_last.merge(event) is not None
        if self.on_record is not None and not continues:
            self.on_record()

    async def flush(self) -> int:
        """Write the events that wait, oldest first, and return how many.

        A write goes on when its caller is cancelled, and the next call waits for it: a stop in the middle of a write
        must not have the events written again. An event may be written twice, if the store's answer to the first write
        was lost.

        Raises:
            StoreDown: those not written yet wait for the next call.
        """
        if self._write_task is None or self._write_task.done():
            self._write_task = asyncio.create_task(self._write_waiting())
        return await asyncio.shield(self._write_task)

    async def _write_waiting(self) -> int:
        written, self._written_last = 0, None
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MAX_WRITTEN, len(self._waiting)))]
            self._written_last = batch[-1][1]
            try:
                await self._client.execute_all("audit", [self._write_command(at, event) for at, event in batch])
            except BaseException:
                self._waiting.extendleft(reversed(batch))
                self._drop_oldest()
                raise
            written += len(batch)
        if self._dropped:
            log.warning("audit events not stored", events=self._dropped)
            self._dropped = 0
        return written

    def _write_command(self, at: int | None, event: AuditEvent) -> Command:
        fields = event.as_fields() if at is None else {"at": at, **event.as_fields()}
        return ("XADD", self._key, "MAXLEN", "~", MAX_EVENTS, "*", "event", _encode(fields))

    async def flush_or_log(self) -> None:
        """Write the events that wait, at the end of a process. If the store is away, only the log has them."""
        try:
            await self.flush()
        except LaterError as error:
            log.warning("audit events not stored", events=len(self._waiting) + self._dropped, reason=str(error))

    async def read(self, since: int = 0, key: str | None = None) -> AsyncIterator[AuditEntry]:
        """Yield the events since a time (ms of the store's clock), oldest first.

        With `key`, only those by that key, and those about it.

        Raises:
            StoreDown: the store cannot be reached.
        """
        start = str(since)
        while True:
            command = ("XRANGE", self._key, start, "+", "COUNT", PAGE_SIZE)
            page = await self._client.execute("audit_trail", command)
            for entry_id, values in page:
                fields = _decode_event(values.get(b"event", b""))
                at = fields.pop("at", None)
                stored_at = int(entry_id.partition(b"-")[0])
                entry = AuditEntry(at if isinstance(at, int) and 0 <= at < MAX_TIME_MS else stored_at, fields)
                if entry.at >= since and (key is None or _concerns(fields, key)):
                    yield entry
            if len(page) < PAGE_SIZE:
                return
            start = "(" + page[-1][0].decode()

    def _drop_oldest(self) -> None:
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._dropped += 1


def _decode_event(written: bytes) -> dict[str, Any]:
    """Return an event's fields. An entry that is none must not hide the others: any user of the API's may add one."""
    try:
        fields = msgspec.json.decode(written, type=dict[str, Any])
    except ValueError:
        fields = {}
    return fields if isinstance(fields.get("event"), str) else {"event": UNREADABLE}


def _concerns(fields: dict[str, Any], key: str) -> bool:
    """Return True for an event by a key, or about it: its beginning, its end."""
    return key == fields.get("key") or (fields["event"] in KEY_ACTIONS and key == fields.get("id"))
