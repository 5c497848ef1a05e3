"""The parameters of a handler's function: its payload, and what is injected.

Annotations may name types that are defined further down, or that only a type checker imports. So they are resolved when
the handler is first used; at decoration, only those that can be resolved already are judged.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

from later.handlers.task import Task

_MISSING = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Dependency:
    """A value that is made for each run, by a function."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def Depends(function: Callable[..., Any]) -> Any:  # noqa: N802  # the name that frameworks have for it
    """Inject a value that is made for each run: as the default of a parameter, or in its `Annotated`.

    `function` may be async, and may be a generator, which is closed after the handler, the last one first. It may take
    a Task and further dependencies. A generator sees the handler's errors, but Retry, Busy, Hold and Dead only as its
    end. The result is of type Any, so that type checkers take it for a default of any parameter.
    """
    return Dependency(function)


class Parameters(NamedTuple):
    """The parameters of a function, by name. `payload` is None if it takes none.

    `default` is the payload's default value, `Parameters.NO_DEFAULT` without one.
    """

    payload: str | None
    payload_type: Any
    default: Any
    tasks: tuple[str, ...]
    dependencies: dict[str, Dependency]

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING


def resolve_parameters(function: Callable[..., Any], name: str, local_names: Mapping[str, Any]) -> dict[str, Any]:
    """Return those types of a function's parameters, by name, that can be resolved now.

    `local_names` are the names where it is defined, for a function within another one.

    Raises:
        TypeError: it takes more than one payload, or any number of arguments.
    """
    parameters = _parameters(function, name)
    types: dict[str, Any] = {}
    for parameter in parameters:
        with suppress(Exception):
            types[parameter.name] = _resolve(function, parameter, local_names)
    payloads = [
        parameter.name
        for parameter in parameters
        if parameter.name in types and not _is_injected(parameter, types[parameter.name])
    ]
    _check_one_payload(payloads, name)
    return types


def read_parameters(function: Callable[..., Any], name: str, types: Mapping[str, Any]) -> Parameters:
    """Return the parameters of a handler's function. `types` are those that were resolved before.

    Raises:
        TypeError: an annotation cannot be resolved, or there is more than one payload.
    """
    payloads: list[tuple[inspect.Parameter, Any]] = []
    tasks: list[str] = []
    dependencies: dict[str, Dependency] = {}
    for parameter in _parameters(function, name):
        annotation = types[parameter.name] if parameter.name in types else _resolve_or_explain(function, parameter)
        dependency = _dependency(parameter, annotation)
        if dependency is not None:
            dependencies[parameter.name] = dependency
        elif _is_task(annotation):
            tasks.append(parameter.name)
        else:
            payloads.append((parameter, annotation))
    _check_one_payload([parameter.name for parameter, _ in payloads], name)
    if not payloads:
        return Parameters(None, None, _MISSING, tuple(tasks), dependencies)
    [(payload, annotation)] = payloads
    payload_type = Any if annotation is _MISSING else annotation
    return Parameters(payload.name, payload_type, payload.default, tuple(tasks), dependencies)


def read_dependency(function: Callable[..., Any], name: str) -> Parameters:
    """Return the parameters of a dependency's function: a Task and further dependencies.

    Raises:
        TypeError: it takes something else without a default, or an annotation cannot be resolved.
    """
    parameters = read_parameters(function, name, {})
    if parameters.payload is not None and not parameters.has_default:
        raise TypeError(f"{name}: a dependency takes a Task and Depends, not {parameters.payload}")
    return parameters


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in _VARIADIC:
            raise TypeError(f"{name}: expected one payload, got {parameter}: put all of it into one dataclass")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name}: {parameter.name} is positional only: handlers are called by names")
    return parameters


def _resolve_or_explain(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return a parameter's type. Raises TypeError: it cannot be resolved; the text says where, and why."""
    try:
        return _resolve(function, parameter, {})
    except Exception as error:
        where = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
        raise TypeError(
            f"{where}: the annotation {parameter.annotation!r} of {parameter.name} cannot be resolved: {error}"
        ) from error


def _resolve(function: Callable[..., Any], parameter: inspect.Parameter, local_names: Mapping[str, Any]) -> Any:
    """Return the type that a parameter's annotation names. Raises whatever its evaluation does."""
    if parameter.annotation is _MISSING:
        return _MISSING
    wrapped = inspect.unwrap(function)
    while isinstance(wrapped, partial):
        wrapped = inspect.unwrap(wrapped.func)
    names = {**getattr(wrapped, "__globals__", {}), **local_names, **_closure(wrapped)}
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    return typing.get_type_hints(holder, names, names, include_extras=True)[parameter.name]


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    values: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return values


def _is_injected(parameter: inspect.Parameter, annotation: Any) -> bool:
    return _is_task(annotation) or _dependency(parameter, annotation) is not None


def _is_task(annotation: Any) -> bool:
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    return annotation is Task or typing.get_origin(annotation) is Task


def _dependency(parameter: inspect.Parameter, annotation: Any) -> Dependency | None:
    if isinstance(parameter.default, Dependency):
        return parameter.default
    if typing.get_origin(annotation) is Annotated:
        return next((extra for extra in typing.get_args(annotation)[1:] if isinstance(extra, Dependency)), None)
    return None


def _check_one_payload(payloads: list[str], name: str) -> None:
    if len(payloads) > 1:
        raise TypeError(
            f"{name}: expected one payload, got {', '.join(payloads)}: put them into one dataclass, "
            "or annotate what is injected as Task or with Depends"
        )
