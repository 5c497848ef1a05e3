"""The dispatch of a task to its handler: whatever happens becomes the outcome of the attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext
from typing import Any

from later.core.forks import call_after_fork
from later.core.retry import Outcome, OutcomeKind
from later.handlers.context import Carried, restored_context
from later.handlers.control import find_control
from later.handlers.dependencies import make_arguments
from later.handlers.handler import Handler
from later.handlers.handler_metrics import HandlerMetrics
from later.handlers.registry import CallNext, Entry, Handlers, Middleware
from later.handlers.runner import FunctionRunner
from later.handlers.task import Task, reset_current, set_current

log = logging.getLogger("later.handlers")

DEFAULT_THREADS = 40

_DONE = Outcome(kind=OutcomeKind.DONE)
_NO_CONTEXT = nullcontext()
"""For applications that carry nothing: a stack for nothing takes longer than an empty handler."""


class HandlerDispatcher:
    """Runs handlers. Those that are not async run in threads of its own, so that they never wait for others' work.

    `threads` is the number of those threads. `carried` are the parts of the context that are set around each run.
    """

    def __init__(self, handlers: Handlers, *, carried: Sequence[Carried] = (), threads: int = DEFAULT_THREADS) -> None:
        self._handlers = handlers
        self._carried = carried
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self.metrics: HandlerMetrics | None = None
        self._closing: set[asyncio.Task[None]] = set()
        """Dependencies that are closed when the threads have ended that use them."""
        call_after_fork(self, HandlerDispatcher._forget_threads)

    def has(self, handler: Handler[Any]) -> bool:
        """Return False if a handler was removed: it is to get no further task."""
        entry = self._handlers.find(handler.topic)
        return entry is not None and entry.handler is handler

    def close(self) -> None:
        """End the threads, each when its function has returned."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    async def dispatch(
        self,
        task: Task[Any],
        content: str,
        *,
        slot_wait_s: float = 0,
        cancel_before_s: float | None = None,
        executor: Executor | None = None,
    ) -> Outcome:
        """Run the handler of a task, and return the outcome of the attempt.

        It waits up to `slot_wait_s` for a slot of the handler. The handler has until `cancel_before_s` before the end
        of the attempt; None: its lease is extended, and it has as long as its `timeout`. `executor` takes the place of
        the threads.

        Raises:
            asyncio.CancelledError, SystemExit, KeyboardInterrupt, MemoryError: the attempt has no outcome.
        """
        entry = self._handlers.find(task.topic)
        if entry is None:
            return Outcome(kind=OutcomeKind.BUSY, reason="handler", message=f"no handler for {task.topic} in this app")
        runner, slots = FunctionRunner(executor or self._executor()), entry.handler.slots
        if not await slots.acquire(slot_wait_s):
            message = f"all {slots.size} runs of the handler for {task.topic} are taken"
            return Outcome(kind=OutcomeKind.BUSY, reason="handler", message=message)
        try:
            time_left_s = None if cancel_before_s is None else task.time_left() - cancel_before_s
            attempt = self._attempt(entry, task, content, runner, time_left_s)
            return await (attempt if self.metrics is None else self.metrics.measure(task, attempt, runner))
        finally:
            runner.when_ended(slots.release)

    async def _attempt(
        self, entry: Entry, task: Task[Any], content: str, runner: FunctionRunner, time_left_s: float | None
    ) -> Outcome:
        handler = entry.handler
        try:
            payload = handler.decode(content)
        except Exception as error:
            log.warning("the content of task %s cannot be read by the handler for %s", task.id, task.topic)
            return Outcome(kind=OutcomeKind.FAILED, reason="payload", message=_describe(error))
        limits_s = [limit for limit in (handler.timeout_s, time_left_s) if limit is not None]
        limit_s = min(limits_s) if limits_s else None
        token = set_current(task)
        try:
            with restored_context(self._carried, task.context) if self._carried else _NO_CONTEXT:
                async with asyncio.timeout(limit_s) as limit:
                    result = await self._with_middlewares(entry, payload, runner)(task)
            if handler.strict and result is not True:
                return Outcome(kind=OutcomeKind.FAILED, reason="result", message=f"returned {result!r}")
        except MemoryError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if (control := find_control(error)) is not None:
                return control.to_outcome()
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            if isinstance(error, TimeoutError) and limit_s is not None and limit.expired():
                message = f"not done within {max(limit_s, 0):.3g} s"
                return Outcome(kind=OutcomeKind.FAILED, reason="timeout", message=message)
            log.exception("the handler for %s failed: task %s, attempt %d", task.topic, task.id, task.attempt)
            return Outcome(kind=OutcomeKind.FAILED, reason="raised", message=_describe(error))
        finally:
            reset_current(token)
        return _DONE

    def _with_middlewares(self, entry: Entry, payload: dict[str, Any], runner: FunctionRunner) -> CallNext:
        async def call_handler(task: Task[Any]) -> object:
            return await self._call_handler(entry.handler, payload, task, runner)

        call: CallNext = call_handler
        for middlewares in reversed(entry.middlewares):
            for middleware in reversed(middlewares):
                call = _around(middleware, call)
        return call

    async def _call_handler(
        self, handler: Handler[Any], payload: dict[str, Any], task: Task[Any], runner: FunctionRunner
    ) -> object:
        """Make the dependencies, run the function, and close them. They see no control exception as an error."""
        if not handler.parameters.dependencies:  # most handlers: there is nothing to close
            return await runner.run(handler.function, {**payload, **dict.fromkeys(handler.parameters.tasks, task)})
        stack = AsyncExitStack()
        try:
            injected = await make_arguments(handler.parameters, task, runner, stack, {})
            result: object = await runner.run(handler.function, {**payload, **injected})
        except BaseException as error:
            if find_control(error) is not None:
                await stack.aclose()
            elif runner.is_running:
                self._close_later(stack, error, runner)
            else:
                await stack.__aexit__(type(error), error, error.__traceback__)
            raise
        await stack.aclose()
        return result

    def _close_later(self, stack: AsyncExitStack, error: BaseException, runner: FunctionRunner) -> None:
        """Close the dependencies of a thread that runs on after its attempt: it may still use them."""

        async def close() -> None:
            await runner.wait()
            try:
                await stack.__aexit__(type(error), error, error.__traceback__)
            except Exception:
                log.exception("a dependency could not be closed")

        closing = asyncio.create_task(close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _forget_threads(self) -> None:
        """Forget the threads of a parent process."""
        self._pool = None
        self._closing = set()

    def _executor(self) -> Executor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="later-handler")
        return self._pool


def _around(middleware: Middleware, call_next: CallNext) -> CallNext:
    def call(task: Task[Any]) -> Any:
        return middleware(task, call_next)

    return call


def _is_cancelled() -> bool:
    """Return True if somebody cancels this attempt. A handler may also wait for something that others cancelled."""
    attempt = asyncio.current_task()
    return attempt is not None and attempt.cancelling() > 0


def _describe(error: BaseException) -> str:
    """Return an error as its name and its text, which may be impossible to get."""
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    return f"{name}: {text}" if text else name
