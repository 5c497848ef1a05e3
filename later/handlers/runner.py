"""The calls of one attempt: async functions on the event loop, all others in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any


class InlineExecutor(Executor):
    """Calls functions at once, in the thread that submits them: that of the request, under WSGI."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class FunctionRunner:
    """Calls the functions of one attempt, one after the other, and knows whether one still runs."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._last: Future[Any] | None = None

    @property
    def is_running(self) -> bool:
        """True if a thread still runs whose attempt has ended: threads cannot be cancelled."""
        return self._last is not None and not self._last.done()

    async def run(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call a function, and wait for it; return what it returns.

        Raises:
            BaseException: the function raised it.
        """
        if _is_async(function):
            return await function(**arguments)
        context = contextvars.copy_context()
        self._last = self._executor.submit(context.run, partial(_call, function, arguments))
        result = await asyncio.wrap_future(self._last)
        return await result if inspect.isawaitable(result) else result

    def when_ended(self, callback: Callable[[], object]) -> None:
        """Call back when the last thread has ended: now, if none runs."""
        if self._last is None:
            callback()
        else:
            self._last.add_done_callback(lambda _: callback())

    async def wait(self) -> None:
        """Wait until the last thread has ended."""
        if self._last is not None:
            await asyncio.wait([asyncio.wrap_future(self._last)])


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function. No future can hold a StopIteration: whoever waits for it would wait forever."""
    try:
        return function(**arguments)
    except StopIteration as error:
        raise RuntimeError("a handler raised StopIteration") from error
