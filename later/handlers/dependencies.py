"""Dependencies of a run: made before the handler, closed after it in reverse."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Any

from later.handlers.parameters import Dependency, Parameters, read_dependency
from later.handlers.runner import FunctionRunner
from later.handlers.task import Task


async def make_arguments(
    parameters: Parameters,
    task: Task[Any],
    runner: FunctionRunner,
    stack: AsyncExitStack,
    made: dict[Callable[..., Any], Any],
) -> dict[str, Any]:
    """Return what is injected into a function: tasks and dependencies. Generators are closed by the stack.

    `made` are the values of this run by their functions: each is made once.

    Raises:
        Exception: a dependency raised it.
    """
    arguments: dict[str, Any] = dict.fromkeys(parameters.tasks, task)
    for name, dependency in parameters.dependencies.items():
        function = dependency.function
        if function not in made:
            further = await make_arguments(_parameters(function), task, runner, stack, made)
            made[function] = await _make(function, further, runner, stack)
        arguments[name] = made[function]
    return arguments


def check_dependencies(parameters: Parameters) -> None:
    """Resolve the types of all dependencies.

    Raises:
        TypeError: one cannot be resolved, takes a payload, or depends on itself; the text names it.
    """
    _check(parameters.dependencies, ())


def _check(dependencies: dict[str, Dependency], within: tuple[Callable[..., Any], ...]) -> None:
    for dependency in dependencies.values():
        if dependency.function in within:
            raise TypeError(f"{_name(dependency.function)} depends on itself")
        _check(_parameters(dependency.function).dependencies, (*within, dependency.function))


@lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any]) -> Parameters:
    return read_dependency(function, _name(function))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


async def _make(
    function: Callable[..., Any], arguments: dict[str, Any], runner: FunctionRunner, stack: AsyncExitStack
) -> Any:
    if inspect.isasyncgenfunction(function):
        return await stack.enter_async_context(asynccontextmanager(function)(**arguments))
    if inspect.isgeneratorfunction(function):
        return await stack.enter_async_context(_in_thread(contextmanager(function)(**arguments), runner))
    return await runner.run(function, arguments)


@asynccontextmanager
async def _in_thread(manager: Any, runner: FunctionRunner) -> AsyncIterator[Any]:
    """Enter and leave a generator that may block in the threads of the run, in one context: it may reset variables."""
    context = copy_context()
    value = await runner.run(manager.__enter__, {}, context)
    try:
        yield value
    except BaseException as error:
        if not await runner.run(partial(manager.__exit__, type(error), error, error.__traceback__), {}, context):
            raise
    else:
        await runner.run(partial(manager.__exit__, None, None, None), {}, context)
