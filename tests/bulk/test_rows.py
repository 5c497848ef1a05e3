"""Columns into tasks: nothing is sent as something else than it says, and no row fails another."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from later.bulk.lines import Read
from later.bulk.rows import Rows
from tests.bulk.judging import CALLBACK, NOW_S, refusals, tasks

DELAY = "delay: expected a number of seconds ≥ 0, got"
HOUR = 3600.0


def read(*, spread_s: float = 0, keyless: bool = False, **columns: Any) -> Read:
    """Rows with these columns, each an array or what makes one; a topic, a callback and keys where they say none."""
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    count = len(next(iter(arrays.values())))
    others = {"topic": ["order"] * count, "callback": [CALLBACK] * count}
    if not keyless:
        others["key"] = [f"row {number}" for number in range(count)]
    batch = pa.record_batch({name: pa.array(values) for name, values in others.items()} | arrays)
    return Rows(batch.schema, "a-job", keyless=keyless, spread_s=spread_s).read(batch)


def due_s(read: Read) -> list[float]:
    """In how many seconds each task is due."""
    return [task.execute_at / 1000 - NOW_S for task in tasks(read)]


class TestSpreading:
    @pytest.mark.parametrize(
        ("values", "got"),
        [
            ([math.nan], "nan"),
            ([math.inf], "inf"),
            (["1e400"], "inf"),
            (["9" * 400], "9" * 77 + "…"),
            ([-5], "-5"),
            (["-5"], "-5"),
            ([-0.5], "-0.5"),
            (["soon"], '"soon"'),
        ],
    )
    def test_what_is_no_delay_does_not_become_one(self, values: list[Any], got: str) -> None:
        assert refusals(read(delay=values, spread_s=HOUR)) == [f"{DELAY} {got}"]
        assert refusals(read(delay=values)) == [f"{DELAY} {got}"]

    @pytest.mark.parametrize("value", [math.nan, math.inf, "1e400", "tomorrow"])
    def test_what_is_no_time_does_not_become_now(self, value: Any) -> None:
        (reason,) = refusals(read(execute_time=[value], spread_s=HOUR))
        assert reason.startswith("execute_time: expected a number of Unix seconds, got ")

    def test_tasks_lie_evenly_in_the_window(self) -> None:
        due = sorted(due_s(read(content=["x"] * 4000, spread_s=HOUR)))
        assert 0 <= due[0] < 5
        assert HOUR - 5 < due[-1] <= HOUR
        assert abs(due[2000] - HOUR / 2) < 120

    def test_a_row_lies_where_it_lay_before(self) -> None:
        assert due_s(read(delay=[5, None], spread_s=HOUR)) == due_s(read(delay=["5", ""], spread_s=HOUR))

    def test_a_window_begins_where_the_row_says(self) -> None:
        offset = due_s(read(content=["x"], spread_s=HOUR))[0]
        assert due_s(read(delay=[10], spread_s=HOUR)) == [10 + offset]
        assert due_s(read(execute_time=[NOW_S + 10.5], spread_s=HOUR)) == [pytest.approx(10.5 + offset, abs=0.001)]

    def test_both_a_delay_and_a_time_are_refused_as_ever(self) -> None:
        assert "got both" in refusals(read(delay=[5], execute_time=[NOW_S], spread_s=HOUR))[0]
