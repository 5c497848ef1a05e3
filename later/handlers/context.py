"""Context that is carried from where a task is created to its handler: a request id, a tenant, a trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar, Token
from importlib import import_module
from typing import Any, Protocol

import msgspec

log = logging.getLogger("later.context")

MAX_CONTEXT_BYTES = 4096
"""The bytes of a task's context as JSON."""

_encode = msgspec.json.Encoder().encode


class Carried(Protocol):
    """A part of the context: how it is read where a task is created, and set around the run of its handler."""

    def capture(self) -> Mapping[str, str]:
        """Return its values, by names that no other part uses."""
        ...

    def restore(self, values: Mapping[str, str]) -> AbstractContextManager[None]:
        """Set it, until the context manager ends, from all values that the task has; names may be missing."""
        ...


class _Variables:
    """Context variables with text in them."""

    def __init__(self, variables: Mapping[str, ContextVar[str]]) -> None:
        self._variables = variables

    def capture(self) -> dict[str, str]:
        found = {name: variable.get(None) for name, variable in self._variables.items()}
        return {name: str(value) for name, value in found.items() if value is not None}

    @contextmanager
    def restore(self, values: Mapping[str, str]) -> Iterator[None]:
        tokens: list[tuple[ContextVar[str], Token[str]]] = [
            (variable, variable.set(values[name])) for name, variable in self._variables.items() if name in values
        ]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)


class _StructlogContext:
    """Values of structlog's context."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def capture(self) -> dict[str, str]:
        bound = _structlog().get_contextvars()
        return {name: str(bound[name]) for name in self._names if name in bound}

    @contextmanager
    def restore(self, values: Mapping[str, str]) -> Iterator[None]:
        with _structlog().bound_contextvars(**{name: values[name] for name in self._names if name in values}):
            yield


class _TraceContext:
    """The trace of OpenTelemetry, as its propagators write it: `traceparent` and `tracestate`."""

    def capture(self) -> dict[str, str]:
        values: dict[str, str] = {}
        import_module("opentelemetry.propagate").inject(values)
        return values

    @contextmanager
    def restore(self, values: Mapping[str, str]) -> Iterator[None]:
        context = import_module("opentelemetry.context")
        token = context.attach(import_module("opentelemetry.propagate").extract(values))
        try:
            yield
        finally:
            context.detach(token)


def variables(**by_name: ContextVar[str]) -> Carried:
    """Carry context variables, each under a name."""
    return _Variables(by_name)


def structlog_context(*names: str) -> Carried:
    """Carry these values of structlog's context. They are named, because others may be secrets."""
    return _StructlogContext(names)


def trace_context() -> Carried:
    """Carry the trace of OpenTelemetry, with the propagators that the application has set."""
    return _TraceContext()


def capture_context(carried: Sequence[Carried], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the context of a task that is created here; `own` values replace captured ones.

    What is captured must not cost the task: a part that fails, or that makes the context too large, is left out, with
    a warning. Whether `own` fits is left to the daemon.
    """
    context: dict[str, str] = {}
    for part in carried:
        try:
            found = {name: str(value) for name, value in part.capture().items()}
        except Exception:
            log.warning("a part of the context was not captured: %r", part, exc_info=True)
            continue
        if len(_encode({**context, **found, **(own or {})})) > MAX_CONTEXT_BYTES:
            log.warning("the context has more than %d bytes: %s left out", MAX_CONTEXT_BYTES, ", ".join(found))
            continue
        context.update(found)
    return {**context, **(own or {})}


@contextmanager
def restored_context(carried: Sequence[Carried], values: Mapping[str, str]) -> Iterator[None]:
    """Set the context of a task while its handler runs. A part that fails is left out, with a warning."""
    with ExitStack() as stack:
        for part in carried:
            try:
                stack.enter_context(part.restore(values))
            except Exception:
                log.warning("a part of the context was not restored: %r", part, exc_info=True)
        yield


def _structlog() -> Any:
    """Return the application's structlog. The library itself logs by `logging`, and does not need it."""
    return import_module("structlog.contextvars")
