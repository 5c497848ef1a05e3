"""Suites of other projects: their tests by name, and a run of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from types import ModuleType
from typing import NamedTuple
from unittest import TestCase, TestResult, TestSuite, defaultTestLoader

from tests.zaqar.left_out import LEFT_OUT


class SuiteTest(NamedTuple):
    """A test of another project."""

    case: type[TestCase]
    method: str

    def __str__(self) -> str:
        return f"{self.case.__name__}.{self.method}"

    def is_left_out(self) -> bool:
        return any(fnmatchcase(str(self), pattern) for patterns in LEFT_OUT.values() for pattern in patterns)

    def failure(self) -> str:
        """Run the test, and return why it failed or was skipped; empty if it passed."""
        result = TestResult()
        self.case(self.method).run(result)
        return "\n".join(text for _, text in [*result.errors, *result.failures, *result.skipped])


def load(modules: Iterable[ModuleType]) -> list[SuiteTest]:
    """Return the tests of these modules, by name."""
    found = {test for module in modules for test in _flatten(defaultTestLoader.loadTestsFromModule(module))}
    return sorted(found, key=str)


def _flatten(suite: TestSuite | TestCase) -> Iterator[SuiteTest]:
    if isinstance(suite, TestCase):
        yield SuiteTest(type(suite), suite._testMethodName)
    else:
        for part in suite:
            yield from _flatten(part)
