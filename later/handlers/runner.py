"""The calls of one attempt: async functions on the event loop, all others in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class RequestExecutor(Executor):
    """Calls functions in the thread of a request, under WSGI, while the event loop of the attempt runs in another one.

    Beside an event loop, Django's ORM and `enqueue_sync` would refuse to block the thread.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in an event loop of its own, and return what it returns; call its functions meanwhile.

        Raises:
            BaseException: the coroutine raised it.
        """
        context = contextvars.copy_context()
        result: Future[Result] = Future()

        def serve() -> None:
            _complete(result, partial(context.run, asyncio.run, coroutine))
            self._calls.put(None)

        threading.Thread(target=serve, name="later-request", daemon=True).start()
        while (call := self._calls.get()) is not None:
            call()
        return result.result()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a function in the thread of the request, and wait for it: that thread can do nothing else meanwhile."""
        future: Future[Any] = Future()
        self._calls.put(partial(_complete, future, partial(fn, *args, **kwargs)))
        wait([future])
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

    async def run(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        context: contextvars.Context | None = None,
    ) -> Any:
        """Call a function, and wait for it; return what it returns. A thread has a copy of this context, or `context`.

        Raises:
            BaseException: the function raised it.
        """
        if is_async(function):
            return await function(**arguments)
        context = context or contextvars.copy_context()
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


def _complete(future: Future[Any], function: Callable[[], Any]) -> None:
    """Set what a function returns or raises as the result of a future."""
    try:
        future.set_result(function())
    except BaseException as error:  # the future raises it where it is awaited
        future.set_exception(error)


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a function, or an object that is called like one, runs in the event loop."""
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function. No future can hold a StopIteration: its waiter would wait forever."""
    try:
        return function(**arguments)
    except StopIteration as error:
        raise RuntimeError("a handler raised StopIteration") from error
