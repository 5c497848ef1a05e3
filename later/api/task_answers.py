"""Answers that hold tasks or schedules: their bytes are limited, in one answer and in all that are collected or sent.

Without the limits a request of a few kB, for thousands of large tasks, could fill the memory of the daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from later.api.json_response import JsonResponse
from later.api.problems import ErrorBody
from later.core.errors import TooManyWaiting
from later.core.task_view import TaskView, task_view
from later.store.types import TaskRecord

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of tasks, as JSON, in one answer; a larger task is alone in its answer."""
MAX_BYTES_IN_ANSWERS = 4 * MAX_ANSWER_BYTES
"""Bytes of tasks, as JSON, in all answers together that are being collected or sent; then answers end early."""
SEND_TIMEOUT_S = 60
"""How long a client may take to read an answer. Otherwise a few slow clients would keep all others waiting."""
ANSWER_FULL = ErrorBody(
    status=413, detail=f"the answer is full: it holds {MAX_ANSWER_BYTES >> 20} MiB at most; ask for this task again"
)

_encode = msgspec.json.Encoder().encode


class BytesInAnswers:
    """The number of bytes of tasks in all answers that are being collected or sent."""

    def __init__(self) -> None:
        self.count = 0

    def open_answer(self) -> TaskAnswer:
        """Return an empty answer.

        Raises:
            TooManyWaiting: there are `MAX_BYTES_IN_ANSWERS` already, and nothing was read from the store.
        """
        if self.count >= MAX_BYTES_IN_ANSWERS:
            raise TooManyWaiting(f"{self.count} bytes of tasks are being sent already in other answers")
        return TaskAnswer(self)


class TaskAnswer:
    """The size of one answer, counted while its `with` block runs: in there, the answer is collected and sent."""

    def __init__(self, all_answers: BytesInAnswers) -> None:
        self._all = all_answers
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._all.count -= self._size

    def add(self, record: TaskRecord, view: Callable[[TaskRecord], TaskView] = task_view) -> msgspec.Raw | None:
        """Return the view of a task as JSON, or None if it does not fit. The first one always fits."""
        encoded = msgspec.Raw(_encode(view(record)))
        return encoded if self.reserve(encoded) else None

    def count(self, size: int) -> None:
        """Count bytes of tasks that are in the answer, whether they fit or not."""
        self._size += size
        self._all.count += size

    def has_room_after(self, size: int) -> bool:
        """Count bytes that are in the answer; return False if nothing more fits."""
        self.count(size)
        return self._size < MAX_ANSWER_BYTES and self._all.count < MAX_BYTES_IN_ANSWERS

    def reserve(self, encoded: msgspec.Raw) -> bool:
        """Count a task that is to be in the answer; return False if it does not fit."""
        size = len(memoryview(encoded))
        is_full = self._size + size > MAX_ANSWER_BYTES or self._all.count + size > MAX_BYTES_IN_ANSWERS
        if self._size and is_full:
            return False
        self.count(size)
        return True


async def send(request: web.Request, response: JsonResponse) -> JsonResponse:
    """Send an answer within its handler, and return it. A client that does not read it in time is disconnected."""
    await is_sent(request, response)
    return response


async def is_sent(request: web.Request, response: web.StreamResponse) -> bool:
    """Send an answer as `send` does; return False if the client has disconnected, or was."""
    try:
        if isinstance(response, JsonResponse) and response.write_small(request):
            return True
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        return False
    except ConnectionError:
        return False
    return True
