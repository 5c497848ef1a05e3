"""Calls for many tasks, of which only those items are sent again that failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from later.client.batch_split import MAX_IDS, MAX_ITEMS, split_items
from later.client.call import JSON, Call, ProblemDetails, encode_json, error_of, given
from later.core.errors import NOT_LATER, Conflict, Exists, LaterError, TooLarge, Unavailable

Answer = TypeVar("Answer")
Results: TypeAlias = list[Answer | LaterError]
"""An answer or an error for each item, in order."""


class BatchItem(NamedTuple, Generic[Answer]):
    """An item of a batch: its body, how to decode its result, and the id of its task.

    It is `exclusive` if its id must be new: then it is not safe to send it again, because it may have made its task.
    """

    body: bytes
    decode: Callable[[bytes], Answer]
    task_id: str
    exclusive: bool = False


class _Results(msgspec.Struct, frozen=True):
    results: list[msgspec.Raw]


class _ItemResult(msgspec.Struct, frozen=True):
    """The error of an item, if it has one."""

    error: ProblemDetails | None = None


_decode_results = msgspec.json.Decoder(_Results).decode
_decode_item_result = msgspec.json.Decoder(_ItemResult).decode


class BatchCall(Call[None], Generic[Answer]):
    """A call for the items that have no result yet. `results` has an answer or an error for each item, in order.

    Reading an answer in which items have failed raises Unavailable; the next body then has these items alone.
    """

    content_type = "application/x-ndjson"
    is_safe = True

    def __init__(self, path: str, items: Sequence[BatchItem[Answer]]) -> None:
        super().__init__(path, self._read, safe=self.is_safe and not any(item.exclusive for item in items))
        self.results: list[Answer | LaterError | None] = [None] * len(items)
        self._items = items
        self._open = list(range(len(items)))
        self._set_body()

    def give_up(self, error: LaterError) -> None:
        """Let the items that have no result have this error."""
        for position in self._open:
            self.results[position] = error

    def halves(self) -> list[BatchCall[Answer]]:
        """Return two calls for the items of this one. It is too large for a server on the way."""
        middle = len(self._items) // 2
        return [self._call_for(part) for part in (self._items[:middle], self._items[middle:])]

    @property
    def can_be_split(self) -> bool:
        return len(self._items) > 1

    def _call_for(self, items: Sequence[BatchItem[Answer]]) -> BatchCall[Answer]:
        return BatchCall(self.path, items)

    def _set_body(self) -> None:
        self.body = b"\n".join([self._items[position].body for position in self._open])

    def _read(self, body: bytes) -> None:
        """Note the results of an answer.

        Raises:
            Unavailable: items failed, or did not fit in the answer.
            msgspec.ValidationError: it is not the answer to this batch.
        """
        results = _decode_results(body).results
        if len(results) != len(self._open):
            raise msgspec.ValidationError(f"expected a result for each item: {NOT_LATER}")
        left_open: list[int] = []
        failure: Unavailable | None = None
        left_out = 0
        for position, raw in zip(self._open, results, strict=True):
            item, problem = self._items[position], _decode_item_result(raw).error
            if problem is None:
                self.results[position] = item.decode(raw)
                continue
            error = error_of(self, problem, problem.status, task_id=item.task_id)
            if item.exclusive and type(error) is Conflict:  # an item's problem has no type
                error = Exists(problem.detail)
            self.results[position] = error
            if isinstance(error, Unavailable):
                left_open.append(position)
                failure = error
            elif isinstance(error, TooLarge) and self.path.startswith("/query"):
                left_open.append(position)
                left_out += 1
        if left_out == len(results):
            return  # not one of them fits in an answer of its own
        self._open = left_open
        self._set_body()
        if failure is not None:
            raise failure
        if left_out:
            raise Unavailable("tasks did not fit in the answer", 503, retry_after_ms=0)


class IdsCall(BatchCall[Answer]):
    """A call that makes several tasks due. It is not sent again where it may have been carried out, as for one task."""

    content_type = JSON
    is_safe = False

    def __init__(self, path: str, items: Sequence[BatchItem[Answer]], durability: str | None = None) -> None:
        self._fields = given(durability=durability)
        super().__init__(path, items)

    def _call_for(self, items: Sequence[BatchItem[Answer]]) -> BatchCall[Answer]:
        return IdsCall(self.path, items, self._fields.get("durability"))

    def _set_body(self) -> None:
        ids = [msgspec.Raw(self._items[position].body) for position in self._open]
        self.body = encode_json({"ids": ids, **self._fields})


class BatchRun(Generic[Answer]):
    """The calls for any number of items, one after the other; after one that fails, none is tried."""

    def __init__(
        self,
        items: Sequence[BatchItem[Answer]],
        call_for: Callable[[Sequence[BatchItem[Answer]]], BatchCall[Answer]],
        *,
        max_items: int = MAX_ITEMS,
    ) -> None:
        self._calls = deque(call_for(part) for part in split_items(items, lambda item: item.body, max_items))
        self._done: list[BatchCall[Answer]] = []
        self._failure: LaterError | None = None

    @classmethod
    def of_batch(cls, path: str, items: Sequence[BatchItem[Answer]]) -> BatchRun[Answer]:
        """Return the calls that send these items."""
        return cls(items, lambda part: BatchCall(path, part))

    @classmethod
    def of_ids(cls, path: str, items: Sequence[BatchItem[Answer]], durability: str | None = None) -> BatchRun[Answer]:
        """Return the calls that make these tasks due."""
        return cls(items, lambda part: IdsCall(path, part, durability), max_items=MAX_IDS)

    def next(self) -> BatchCall[Answer] | None:
        """Return the call to send next; None if there is none."""
        while self._calls:
            call = self._calls.popleft()
            self._done.append(call)
            if self._failure is None:
                return call
            call.give_up(self._failure)
        return None

    def note_failure(self, error: LaterError) -> None:
        """Note the failure of the call that was sent last. One that was too large is sent in two halves."""
        call = self._done[-1]
        if isinstance(error, TooLarge) and call.can_be_split:
            self._done.pop()
            self._calls.extendleft(reversed(call.halves()))
            return
        call.give_up(error)
        if not isinstance(error, TooLarge):
            self._failure = error

    def results(self) -> Results[Answer]:
        """Return an answer or an error for each item. Raises LaterError: no item has got one of its own."""
        results = [result for call in self._done for result in call.results]
        if self._failure is not None and all(result is self._failure for result in results):
            raise self._failure
        return [result for result in results if result is not None]
