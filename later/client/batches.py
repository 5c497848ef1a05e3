"""The batch sender: it splits items into batches by number and bytes, and repeats calls that may work later.

Repeating is safe because every item has an id of its own: a batch whose answer was lost creates no task twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

from later.client.batch_split import split_items
from later.client.http import NotReached, TargetFull
from later.client.transport import TOO_LARGE, BatchResult, CreateCounts, ItemError, TaskStatus, Transport
from later.core.errors import STORE_FULL_REASON, CallFailed, Unavailable

MAX_BODY_BYTES = 16 * 1024 * 1024 - 1024
"""The largest body that fits in a batch: the request has at most 16 MiB."""
MAX_PAUSE_S = 60.0
JITTER = 0.5
"""The largest fraction by which a pause is lengthened at random, so that executors do not all retry at once."""

Item = TypeVar("Item")
Result = TypeVar("Result")
CreateCall = Callable[[Sequence[bytes]], BatchResult]
LookupCall = Callable[[Sequence[str]], list[TaskStatus | ItemError]]


class RetryPolicy:
    """The number of times that a failed call is repeated, and the pauses before each.

    `sleep` takes seconds. `on_retry` is called before each pause with the reason and the pause in seconds.
    """

    def __init__(
        self,
        retries: int,
        sleep: Callable[[float], None],
        *,
        jitter: float = JITTER,
        on_retry: Callable[[str, float], None] = lambda reason, pause_s: None,
    ) -> None:
        self._retries = retries
        self._sleep = sleep
        self._jitter = jitter
        self._on_retry = on_retry

    def call(self, function: Callable[[], Result], min_pause_s: float = 0.0) -> Result:
        """Return the function's result; repeat it while it raises Unavailable. Raises CallFailed."""
        for attempt in count():
            try:
                return function()
            except Unavailable as error:
                self.wait(attempt, error, min_pause_s)
        raise AssertionError  # the last attempt returns or raises

    def wait(self, attempt: int, error: Unavailable, min_pause_s: float = 0.0) -> None:
        """Pause after a failed attempt, the first being 0: as long as the server asked for, otherwise 1, 2, 4 … 60 s.

        Raises:
            CallFailed: It was the last attempt.
        """
        if attempt >= self._retries:
            attempts = f" (tried {attempt + 1} times)" if attempt else ""
            raise last_failure(f"{error}{attempts}", error.status) from error
        requested_ms = error.retry_after_ms
        pause_s = min(2.0**attempt if requested_ms is None else requested_ms / 1000, MAX_PAUSE_S)
        pause_s = max(pause_s, min_pause_s) * random.uniform(1, 1 + self._jitter)
        self._on_retry(str(error), pause_s)
        self._sleep(pause_s)


def last_failure(reason: str, status: int | None) -> CallFailed:
    """Return the error of a call whose last attempt failed for this reason."""
    if reason.startswith(STORE_FULL_REASON):
        return TargetFull(reason, status)
    is_fault = status in (429, 500)
    return CallFailed(reason, status) if is_fault else NotReached(reason, status)


class ItemsUnavailable(CallFailed):
    """A failure of some items of a batch in every attempt, although the other side answered."""


class BatchAttempt(NamedTuple):
    """One attempt at a batch: its result for the items that are finished, and the errors of those to send again.

    Positions count from the batch's first item.
    """

    result: BatchResult
    unavailable: dict[int, ItemError]


class BatchSender:
    """Sends items in batches of at most `batch_size`, and repeats what the retry policy allows."""

    def __init__(self, transport: Transport, retry: RetryPolicy, *, batch_size: int) -> None:
        self._transport = transport
        self._retry = retry
        self._batch_size = batch_size

    def create(self, bodies: Sequence[bytes]) -> Iterator[BatchResult]:
        """Create tasks, batch by batch; the results' positions are those in `bodies`.

        Raises:
            LaterError: A batch cannot be sent. The batches after it were not tried.
        """
        return self._send_all(bodies, self._transport.create)

    def validate(self, bodies: Sequence[bytes]) -> Iterator[BatchResult]:
        """Return what `create` would reject, batch by batch. Raises LaterError, as `create` does."""
        return self._send_all(bodies, self._transport.validate)

    def query(self, ids: Sequence[str]) -> list[TaskStatus]:
        """Return the status of each task. Raises LaterError."""
        return self._look_up(ids, self._transport.query)

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus]:
        """Delete pending tasks and return the status that each task had. Raises LaterError."""
        return self._look_up(ids, self._transport.cancel)

    def counts(self) -> CreateCounts:
        """Return the counts of the transport's run or job. Raises LaterError."""
        return self._retry.call(self._transport.counts)

    def split(self, items: Iterable[Item], body: Callable[[Item], bytes]) -> Iterator[list[Item]]:
        """Yield the items in batches of at most `batch_size` items."""
        return split_items(items, body, self._batch_size)

    def send_batch(self, bodies: Sequence[bytes], create: CreateCall | None = None) -> Iterator[BatchAttempt]:
        """Send one batch until each of its items is created, existing or rejected; yield each attempt.

        Raises:
            ItemsUnavailable: Some items failed in the last attempt, too.
            CallFailed: The batch cannot be sent, or was not answered in the last attempt.
        """
        create = create or self._transport.create
        left: Sequence[int] = range(len(bodies))
        for attempt in count():
            try:
                result = create([bodies[position] for position in left]).at(left)
            except Unavailable as error:
                self._retry.wait(attempt, error)
                continue
            except CallFailed as error:
                if error.status != TOO_LARGE or len(left) < 2:
                    raise
                yield from self._send_halves(bodies, left, create, str(error))
                return
            unavailable = {position: error for position, error in result.errors.items() if error.is_retryable}
            rejected = {position: error for position, error in result.errors.items() if not error.is_retryable}
            yield BatchAttempt(result._replace(errors=rejected), unavailable)
            if not unavailable:
                return
            left = list(unavailable)
            try:
                self._retry.wait(attempt, Unavailable(unavailable[left[-1]].reason))
            except CallFailed as error:
                raise ItemsUnavailable(str(error)) from error

    def _send_halves(
        self, bodies: Sequence[bytes], positions: Sequence[int], create: CreateCall, reason: str
    ) -> Iterator[BatchAttempt]:
        """Send a batch that is too large for a proxy on the way as two, each with attempts of its own.

        The result of the first half is yielded before the second half is sent, whose failure would otherwise hide it.

        Raises:
            ItemsUnavailable, CallFailed: As `send_batch` does.
        """
        left = dict.fromkeys(positions, ItemError(TOO_LARGE, None, reason))
        failure: ItemsUnavailable | None = None
        middle = len(positions) // 2
        for half in (positions[:middle], positions[middle:]):
            others = {position: left[position] for position in left.keys() - set(half)}
            try:
                for attempt in self.send_batch([bodies[position] for position in half], create):
                    unavailable = {half[position]: error for position, error in attempt.unavailable.items()}
                    left = dict(sorted((others | unavailable).items()))
                    yield BatchAttempt(attempt.result.at(half), left)
            except ItemsUnavailable as error:
                failure = error
        if failure is not None:
            raise failure

    def _send_all(self, bodies: Sequence[bytes], create: CreateCall) -> Iterator[BatchResult]:
        for positions in self.split(range(len(bodies)), bodies.__getitem__):
            batch = [bodies[position] for position in positions]
            if len(batch[0]) > MAX_BODY_BYTES:
                too_large = ItemError(TOO_LARGE, None, f"expected a body of at most {MAX_BODY_BYTES} bytes")
                yield BatchResult(0, [], {positions[0]: too_large})
                continue
            try:
                results = [attempt.result.at(positions) for attempt in self.send_batch(batch, create)]
            except ItemsUnavailable as error:
                raise last_failure(str(error), error.status) from error
            yield BatchResult(
                sum(result.created for result in results),
                [position for result in results for position in result.existing],
                {position: error for result in results for position, error in result.errors.items()},
            )

    def _look_up(self, ids: Sequence[str], look_up: LookupCall) -> list[TaskStatus]:
        statuses: list[TaskStatus] = []
        for start in range(0, len(ids), self._batch_size):
            statuses += self._look_up_batch(ids[start : start + self._batch_size], look_up)
        return statuses

    def _look_up_batch(self, ids: Sequence[str], look_up: LookupCall) -> list[TaskStatus]:
        known: dict[str, TaskStatus] = {}
        left = list(dict.fromkeys(ids))  # a task that is cancelled twice would be missing the second time
        attempt = 0
        while left:
            try:
                answers = look_up(left)
            except Unavailable as error:
                self._retry.wait(attempt, error)
                attempt += 1
                continue
            found = {id: answer for id, answer in zip(left, answers, strict=True) if isinstance(answer, TaskStatus)}
            known |= found
            left = [id for id in left if id not in found]
            errors = [answer for answer in answers if isinstance(answer, ItemError)]
            if found:  # tasks that did not fit in the answer are asked for again at once
                errors = [error for error in errors if error.status != TOO_LARGE]
            if errors and not errors[-1].is_retryable:
                raise CallFailed(errors[-1].reason, errors[-1].status)
            if errors:
                self._retry.wait(attempt, Unavailable(errors[-1].reason))
                attempt += 1
        return [known[id] for id in ids]
