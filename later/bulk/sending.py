"""BatchSender of lines through a transport, and again where that is safe: every line has an id of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from later.bulk.input.payload import Payloads, Reject
from later.client.http import BATCH_BYTES, MAX_LINE_BYTES, pause_before_again
from later.client.transport import BatchResult, Counts, ItemError, TaskStatus, Transport, Unavailable
from later.core.errors import LaterError

JITTER = 0.5
"""By up to what share of itself a pause is lengthened: or executors that were sent away together come back together."""

NO_REST = "the last try rests by raising"

Answer = TypeVar("Answer")
Ask = Callable[[Sequence[str]], list[TaskStatus | ItemError]]


class Sent(NamedTuple):
    """What lines came to."""

    created: int
    existing: int
    rejects: list[Reject]


class RetryPolicy:
    """How often what was not reached is tried again, with pauses. `sleep` takes seconds."""

    def __init__(self, retries: int, sleep: Callable[[float], None]) -> None:
        self._retries = retries
        self._sleep = sleep

    @property
    def tries(self) -> range:
        """The attempts that there may be; the last one's rest raises."""
        return range(self._retries + 1)

    def until_reached(self, call: Callable[[], Answer]) -> Answer:
        """What the call answers in the end. Raises LaterError: it was never reached, or something else is wrong."""
        for attempt in self.tries:
            answer = self.reached(attempt, call)
            if answer is not None:
                return answer
        raise AssertionError(NO_REST)

    def reached(self, attempt: int, call: Callable[[], Answer]) -> Answer | None:
        """The answer; None after a rest, where there was none. Raises LaterError: it was the last try."""
        try:
            return call()
        except Unavailable as error:
            self.rest(attempt, error)
            return None

    def rest(self, attempt: int, error: Unavailable) -> None:
        """Wait before the next try. Raises LaterError: there is none."""
        if attempt == self._retries:
            raise LaterError(f"{error} (tried {attempt + 1} times)" if attempt else str(error)) from error
        self._sleep(pause_before_again(attempt, error.again_ms) * random.uniform(1, 1 + JITTER))


class BatchSender:
    """Sends lines, at most `batch` at a time, each again as often as the patience has it."""

    def __init__(self, transport: Transport, patience: RetryPolicy, *, batch: int) -> None:
        self._door = transport
        self._patience = patience
        self._batch = batch

    def create(self, lines: Payloads) -> Iterator[Sent]:
        """Create the tasks, batch by batch. Raises LaterError: one cannot be sent; what follows it was not tried."""
        return self._send(lines, self._door.create)

    def judge(self, lines: Payloads) -> Iterator[Sent]:
        """The same without creating anything."""
        return self._send(lines, self._door.judge)

    def find(self, ids: Sequence[str]) -> list[TaskStatus]:
        """Where tasks are. Raises LaterError."""
        return self._ask(ids, self._door.find)

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus]:
        """Delete those that are pending; where each was. Raises LaterError."""
        return self._ask(ids, self._door.cancel)

    def counts(self) -> Counts:
        """What the job has come to. Raises LaterError."""
        return self._patience.until_reached(self._door.counts)

    def _send(self, lines: Payloads, send: Callable[[Sequence[bytes]], BatchResult]) -> Iterator[Sent]:
        for part in parts(lines, self._batch):
            if len(part.bodies[0]) > MAX_LINE_BYTES:
                yield Sent(0, 0, [part.reject(0, None, f"expected a body of at most {MAX_LINE_BYTES} bytes")])
            else:
                yield self._until_decided(part, send)

    def _until_decided(self, lines: Payloads, send: Callable[[Sequence[bytes]], BatchResult]) -> Sent:
        """Until each line is created, known or refused, or there were tries enough."""
        created, existing, rejects, left = 0, 0, list[Reject](), lines
        for attempt in self._patience.tries:
            came = self._patience.reached(attempt, partial(send, left.bodies))
            if came is None:
                continue
            created += came.created
            existing += came.existing
            again, reason = [], ""
            for position, wrong in came.wrong.items():
                if wrong.may_pass:
                    again.append(position)
                    reason = wrong.reason
                else:
                    rejects.append(left.reject(position, wrong.field, wrong.reason))
            if not again:
                return Sent(created, existing, rejects)
            self._patience.rest(attempt, Unavailable(reason))
            left = left.select(again)
        raise AssertionError(NO_REST)

    def _ask(self, ids: Sequence[str], ask: Ask) -> list[TaskStatus]:
        found: list[TaskStatus] = []
        for start in range(0, len(ids), self._batch):
            found += self._until_known(ids[start : start + self._batch], ask)
        return found

    def _until_known(self, ids: Sequence[str], ask: Ask) -> list[TaskStatus]:
        known: dict[str, TaskStatus] = {}
        left = list(dict.fromkeys(ids))  # of a task that is deleted twice, the second answer is that it is missing
        for attempt in self._patience.tries:
            answers = self._patience.reached(attempt, partial(ask, left))
            if answers is None:
                continue
            known |= {id: a for id, a in zip(left, answers, strict=True) if isinstance(a, TaskStatus)}
            wrong = [a for a in answers if isinstance(a, ItemError)]
            if not wrong:
                return [known[id] for id in ids]
            if not wrong[-1].may_pass:
                raise LaterError(wrong[-1].reason)
            self._patience.rest(attempt, Unavailable(wrong[-1].reason))
            left = [id for id in left if id not in known]
        raise AssertionError(NO_REST)


def parts(lines: Payloads, most: int) -> Iterator[Payloads]:
    """The lines, at most so many at a time and no more bytes than a batch may have; one that has more is alone."""
    start = size = 0
    for position, body in enumerate(lines.bodies):
        if position > start and (position - start == most or size + len(body) > BATCH_BYTES):
            yield lines.slice(start, position)
            start, size = position, 0
        size += len(body) + 1
    if start < len(lines.bodies):
        yield lines.slice(start, len(lines.bodies))
