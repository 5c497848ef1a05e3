"""A test of a table runs all its cases, and names those that failed."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.cases import each_case


def test_all_cases_run_and_those_that_failed_are_named() -> None:
    seen: list[int] = []

    @each_case("number, is_even", [(1, True), (2, True), (3, False), (4, False)])
    def test(number: int, is_even: bool) -> None:
        seen.append(number)
        assert (number % 2 == 0) is is_even

    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases failed") as failure:
        test()
    assert seen == [1, 2, 3, 4]
    assert [error.__notes__ for error in failure.value.exceptions] == [
        ["case: number=1, is_even=True"],
        ["case: number=4, is_even=False"],
    ]


async def test_a_coroutine_runs_for_each_case_of_all_its_tables() -> None:
    seen: list[str] = []

    @each_case("letter", "ab", ids=["first", "second"])
    @each_case("number", [1, 2])
    async def test(letter: str, number: int) -> None:
        seen.append(f"{letter}{number}")
        if letter == "b":
            pytest.fail("b")

    with pytest.raises(BaseExceptionGroup) as failure:
        await test()
    assert seen == ["a1", "a2", "b1", "b2"]
    assert [error.__notes__ for error in failure.value.exceptions] == [["case: second"]]


def test_pytest_sees_the_fixtures_only() -> None:
    @each_case("number", [1])
    def test(tmp_path: Path, number: int) -> None:
        """Need both."""

    assert list(inspect.signature(test).parameters) == ["tmp_path"]


def test_a_table_without_cases_is_an_error() -> None:
    with pytest.raises(AssertionError, match="shows nothing"):
        each_case("number", [])
