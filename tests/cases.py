"""Tests of tables: one test for all cases of a table. A failure names its case."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

import pytest

Test = Callable[..., Any]

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = 200


def each_case(
    names: str | Sequence[str], cases: Iterable[Any], ids: Iterable[str] | None = None
) -> Callable[[Test], Test]:
    """Run a test for each case of a table, which is given as to `pytest.mark.parametrize`, in one item of pytest.

    An item takes more than a millisecond of each test process, most cases take microseconds. All cases run, and those
    that failed are raised together. They share the fixtures of the test: no case may change what another one sees.
    """
    fields = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [dict(zip(fields, case if len(fields) > 1 else (case,), strict=True)) for case in cases]
    assert rows, "a table without cases shows nothing"
    named_rows = list(zip(map(_describe, rows) if ids is None else ids, rows, strict=True))

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            failures = Failures()
            for name, row in named_rows:
                with failures.collect(name):
                    test(*args, **fixtures, **row)
            failures.raise_all(len(rows))

        @wraps(test)
        async def run_async(*args: Any, **fixtures: Any) -> None:
            failures = Failures()
            for name, row in named_rows:
                with failures.collect(name):
                    await test(*args, **fixtures, **row)
            failures.raise_all(len(rows))

        signature = inspect.signature(test)
        parameters = [parameter for name, parameter in signature.parameters.items() if name not in fields]
        chosen: Any = run_async if inspect.iscoroutinefunction(test) else run
        chosen.__signature__ = signature.replace(parameters=parameters)  # from which pytest reads the fixtures
        return cast(Test, chosen)

    return decorate


class Failures:
    """The failures of cases."""

    def __init__(self) -> None:
        self._errors: list[BaseException] = []

    @contextmanager
    def collect(self, case: str) -> Iterator[None]:
        """Keep the failure of a case, and its name with it."""
        try:
            yield
        except (Exception, BaseExceptionGroup, pytest.fail.Exception) as error:
            error.add_note(f"case: {case}")
            self._errors.append(error)

    def raise_all(self, cases: int) -> None:
        if self._errors:
            raise BaseExceptionGroup(f"{len(self._errors)} of {cases} cases failed", self._errors)


def _describe(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_shortened.repr(value)}" for name, value in row.items())
