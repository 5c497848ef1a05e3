"""What a worker does with a partition, on a real store: every row is counted once, or told of with the reason."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from later.bulk.input.json import TEXT_COLUMN
from later.bulk.input.payload import MISSING_KEY
from later.bulk.input.table import RowShape, Table
from later.bulk.input.task_ids import task_ids
from later.bulk.jobs.partition import CREATED, FOUND, Cancel, Create, Find
from later.bulk.transport.target import Target
from later.core.errors import LaterError, Refused
from later.core.task import pack_id
from later.store.keys import Bucket
from tests.bulk.answers import Answer, problem, served, told
from tests.bulk.conftest import Stored
from tests.bulk.validation import CALLBACK

JOB = "j"
TABLE = Table(job=JOB)
LINES = Table(job=JOB, shape=RowShape.OBJECTS)


@pytest.fixture
def target(stored: Stored) -> Target:
    return Target(url=stored.place.url, timeout_s=10, batch=3, retries=0)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were asked for; none is made."""
    asked: list[float] = []
    monkeypatch.setattr("later.bulk.transport.target.time.sleep", asked.append)
    return asked


def batch(*keys: Any, **columns: list[Any]) -> pa.RecordBatch:
    """Rows with these keys, each a right task but for what the columns say."""
    there = {"key": keys, "topic": ["order"] * len(keys), "callback": [CALLBACK] * len(keys)} | columns
    kinds = {"key": pa.string(), "delay": pa.float64()}
    return pa.record_batch({name: pa.array(values, kinds.get(name)) for name, values in there.items()})


def lines(*rows: object) -> pa.RecordBatch:
    return pa.record_batch({TEXT_COLUMN: [row if isinstance(row, str) else json.dumps(row) for row in rows]})


def good(key: object, **changes: Any) -> dict[str, Any]:
    return {"key": key, "topic": "order", "callback": CALLBACK, **changes}


class Ran:
    """What came out of a partition: the tally, and the rows that were told of."""

    def __init__(self, out: Iterable[pa.RecordBatch]) -> None:
        rows = [row for batch in out for row in batch.to_pylist()]
        assert [row["rows"] is None for row in rows] == [True] * (len(rows) - 1) + [False], "the tally comes last, once"
        self.tally = {name: count for name, count in rows[-1].items() if isinstance(count, int)}
        self.told = [{name: row[name] for name in row.keys() - self.tally} for row in rows[:-1]]

    @property
    def keys(self) -> list[str | None]:
        return [row["key"] for row in self.told]


def came(work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], *batches: pa.RecordBatch) -> Ran:
    """What comes of a partition of these, on a worker: what does the work has travelled."""
    return Ran(pickle.loads(pickle.dumps(work))(iter(batches)))


class TestCreating:
    def test_rows_are_created_and_counted(self, target: Target, stored: Stored) -> None:
        first, again = (came(Create(target=target, table=TABLE), batch(*"abcde"), batch(*"fg")) for _ in range(2))
        assert first.tally == {"rows": 7, "created": 7, "existing": 0, "rejected": 0}
        assert again.tally == {"rows": 7, "created": 0, "existing": 7, "rejected": 0}
        assert (first.told, stored.tasks()) == ([], 7)

    def test_a_partition_without_rows_is_counted_too(self, target: Target) -> None:
        nothing = {"rows": 0, "created": 0, "existing": 0, "rejected": 0}
        assert came(Create(target=target, table=TABLE)).tally == nothing
        assert came(Create(target=target, table=TABLE), batch(), batch(delay=[])).tally == nothing

    def test_bad_rows_are_told_of_with_the_field_and_why(self, target: Target) -> None:
        rows = batch("a", None, "c", "d", delay=[-5, 1, 2, float("nan")])
        done = came(Create(target=target, table=TABLE), rows)
        assert done.tally == {"rows": 4, "created": 1, "existing": 0, "rejected": 3}
        number = "delay: expected a number of seconds ≥ 0, got"
        told = [(row["key"], row["field"], row["reason"], json.loads(row["row"]).get("delay")) for row in done.told[:2]]
        assert told == [(None, "key", MISSING_KEY, 1.0), ("a", "delay", f"{number} -5", -5.0)]
        assert done.told[2] == {
            "key": "d", "field": "delay", "reason": f"{number} nan",
            "row": f'{{"topic":"order","callback":"{CALLBACK}","delay":NaN}}',
        }  # fmt: skip

    def test_a_batch_of_bad_rows_alone_is_no_end(self, target: Target) -> None:
        done = came(Create(target=target, table=TABLE), batch(None, None, delay=[1, 1]), batch("a", "b", delay=[-1, 1]))
        assert done.tally == {"rows": 4, "created": 1, "existing": 0, "rejected": 3}

    def test_as_many_are_told_of_as_are_wanted_and_all_are_counted(self, target: Target) -> None:
        rows = [batch(*[None] * 4), batch(*[None] * 4)]
        for wanted, shown in ((None, 8), (0, 0), (5, 5), (9, 8)):
            done = came(Create(target=target, table=TABLE, told=wanted), *rows)
            assert (len(done.told), done.tally["rejected"]) == (shown, 8)

    def test_rows_that_have_the_same_key_are_one_task(self, target: Target, stored: Stored) -> None:
        done = came(Create(target=target, table=TABLE), batch(*"aaaab"), batch(*"ba"))
        assert (done.tally["created"], done.tally["existing"], stored.tasks()) == (2, 5, 2)

    def test_a_key_is_the_same_from_columns_and_from_json(self, target: Target) -> None:
        numbers = pa.record_batch({"key": [1, 2], "topic": ["order"] * 2, "callback": [CALLBACK] * 2})
        came(Create(target=target, table=TABLE), batch("1", "2"))
        assert came(Create(target=target, table=TABLE), numbers).tally["existing"] == 2
        assert came(Create(target=target, table=LINES), lines(good(1), good("2"))).tally["existing"] == 2

    def test_a_dry_run_creates_nothing_and_tells_the_same(self, target: Target, stored: Stored) -> None:
        rows = batch("a", None, "c", delay=[-5, 1, 2])
        dry = came(Create(target=target, table=TABLE, dry_run=True), rows)
        assert (dry.tally["rows"], dry.tally["rejected"], stored.tasks()) == (3, 2, 0)
        assert dry.told == came(Create(target=target, table=TABLE), rows).told

    def test_json_that_is_none_is_told_of_as_it_was(self, target: Target) -> None:
        done = came(
            Create(target=target, table=LINES), lines(good(1), "nope", "", good(2, x=1), good(None), good(3, id="x"))
        )
        assert done.tally == {"rows": 5, "created": 1, "existing": 0, "rejected": 4}
        assert {row["reason"].partition(":")[0] for row in done.told} == {"expected JSON", "x", "key", "id"}
        assert "nope" in {row["row"] for row in done.told}

    def test_a_column_called_value_is_no_json_by_that(self, target: Target) -> None:
        with pytest.raises(Refused, match="value: unknown column"):
            came(Create(target=target, table=TABLE), lines(good(1)))

    def test_what_comes_out_is_of_the_columns_that_spark_was_told(self, target: Target) -> None:
        for work, schema in ((Create(target=target, table=TABLE), CREATED), (Find(target=target, table=TABLE), FOUND)):
            for out in work(iter([batch(None, "b", delay=[1, -1])])):
                kinds = {"int64": "bigint", "string": "string"}
                assert ", ".join(f"{field.name} {kinds[str(field.type)]}" for field in out.schema) == schema

    @given(st.data())
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @pytest.mark.parametrize("shards", [1], indirect=True)
    def test_whatever_the_rows_are_the_sums_are_theirs(
        self, target: Target, stored: Stored, data: st.DataObject
    ) -> None:
        text = st.none() | st.sampled_from(
            ["", " ", "5", "-5", "1e999", "NaN", "{}", '{"a":"b"}', CALLBACK, "a/b", "\x00é"]
        )
        names = ["key", "topic", "callback", "content", "delay", "execute_time", "retry", "ttl", "headers"]
        table = data.draw(st.lists(st.tuples(*[text] * len(names)), max_size=12))
        rows = pa.table([pa.array(column, pa.string()) for column in zip(*table, strict=True)] or [[]] * 9, names)
        before = stored.tasks()

        done = came(Create(target=target, table=TABLE), *[b for b in rows.to_batches(max_chunksize=5) if table])

        tally = done.tally
        assert tally["rows"] == len(table) == tally["created"] + tally["existing"] + tally["rejected"]
        assert tally["rejected"] == len(done.told)
        assert tally["created"] == stored.tasks() - before


class TestByTheApi:
    def test_rows_of_any_size_come_out_once(self) -> None:
        sizes = [0, 900_000, 1_100_000, 900_000, 17_000_000, *[900_000] * 20]
        rows = batch(*map(str, range(len(sizes))), content=["x" * size for size in sizes])
        with served() as api:
            done = came(Create(target=Target(url=api.url), table=TABLE), rows)
        assert done.tally == {"rows": 25, "created": 23, "existing": 0, "rejected": 2}
        assert [(row["key"], row["reason"]) for row in done.told] == [
            ("2", "expected a body of at most 1048576 bytes"),
            ("4", "expected a body of at most 16776192 bytes"),
        ]

    def test_one_that_is_away_for_a_while_is_waited_for(self, pauses: list[float]) -> None:
        with served() as api:
            api.front.client.away = [0]

            def back(pause: float) -> None:
                api.front.client.away = []

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("later.bulk.transport.target.time.sleep", back)
                done = came(Create(target=Target(url=api.url), table=TABLE), batch(*"abc"))
        assert done.tally == {"rows": 3, "created": 3, "existing": 0, "rejected": 0}

    def test_one_that_stays_away_fails_the_partition(self, pauses: list[float]) -> None:
        with told(problem(503, "the store is gone")) as api, pytest.raises(LaterError, match=r"gone \(tried 3 times\)"):
            came(Create(target=Target(url=api.url, retries=2), table=TABLE), batch("a"))
        assert len(pauses) == 2

    def test_so_does_one_that_is_not_later(self) -> None:
        with told(Answer(200, b"<html>")) as api, pytest.raises(LaterError, match="is it later that answers there"):
            came(Create(target=Target(url=api.url), table=TABLE), batch("a"))


class TestAStoreThatIsAway:
    def test_its_opening_is_tried_again(self, tmp_path: Any, pauses: list[float]) -> None:
        nowhere = Target(url=f"unix://{tmp_path}/none", retries=2)
        with pytest.raises(LaterError, match=r"cannot be reached: .* \(tried 3 times\)"):
            came(Create(target=nowhere, table=TABLE), batch("a"))
        assert len(pauses) == 2


class TestFinding:
    @pytest.fixture(autouse=True)
    def tasks(self, target: Target, stored: Stored) -> None:
        """Of a to d: pending, dead, ended and cancelled."""
        came(Create(target=target, table=TABLE), batch(*"abcd"))
        _, dead, ended, gone = task_ids(JOB, [b"a", b"b", b"c", b"d"])
        score = 9_000_000_000_000
        stored.redis.zrem(stored.keys.shard_of(dead).bucket(Bucket.DELAY, b"order"), pack_id(dead))
        stored.redis.zadd(stored.keys.shard_of(dead).bucket(Bucket.DEAD, b"order"), {pack_id(dead): score})
        for id in (ended, gone):
            stored.redis.hdel(stored.keys.shard_of(id).pool, pack_id(id))
            stored.redis.zrem(stored.keys.shard_of(id).bucket(Bucket.DELAY, b"order"), pack_id(id))
        stored.redis.zadd(stored.keys.shard_of(ended).done, {pack_id(ended): score})

    def test_each_row_is_counted_where_its_task_is(self, target: Target) -> None:
        done = came(Find(target=target, table=TABLE), batch("a", "b", "c", "d", "e", None, "a"))
        assert done.tally == {"rows": 7, "pending": 2, "dead": 1, "ended": 1, "missing": 2, "unfit": 1}
        assert [(row["key"], row["id"]) for row in done.told] == list(
            zip("de", task_ids(JOB, [b"d", b"e"]), strict=True)
        )
        assert json.loads(done.told[0]["row"]) == {"topic": "order", "callback": CALLBACK}

    def test_a_row_that_was_rejected_is_missing_or_can_have_no_task(self, target: Target) -> None:
        done = came(Find(target=target, table=LINES), lines(good("x", delay=-5), "nope", good(None), good("a")))
        assert done.tally == {"rows": 4, "pending": 1, "dead": 0, "ended": 0, "missing": 1, "unfit": 2}

    def test_as_many_are_told_of_as_are_wanted(self, target: Target) -> None:
        done = came(Find(target=target, table=TABLE, told=3), batch("u", "v"), batch("w", "x", "y"))
        assert (done.keys, done.tally["missing"]) == (["u", "v", "w"], 5)

    def test_a_partition_without_rows_is_counted_too(self, target: Target) -> None:
        assert set(came(Find(target=target, table=TABLE)).tally.values()) == {0}
        assert set(came(Cancel(target=target, table=TABLE), batch()).tally.values()) == {0}

    def test_what_is_pending_is_cancelled_and_the_rest_stays(self, target: Target, stored: Stored) -> None:
        done = came(Cancel(target=target, table=TABLE), batch("a", "a", "b", "c", "d", None))
        assert done.tally == {"rows": 6, "pending": 2, "dead": 1, "ended": 1, "missing": 1, "unfit": 1}
        assert (done.told, stored.tasks()) == ([], 1)
        assert came(Cancel(target=target, table=TABLE), batch("a", "b", "c")).tally["missing"] == 1
