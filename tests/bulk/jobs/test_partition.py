"""The functions of a partition, on a real store: each row is counted once, or returned with the reason."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from later.bulk.input.due_times import DueTimes
from later.bulk.input.json import TEXT_COLUMN
from later.bulk.input.rejects import MISSING_KEY
from later.bulk.input.row_settings import RowSettings, RowShape
from later.bulk.input.task_ids import task_ids
from later.bulk.jobs.partition import CREATE_SCHEMA, STATUS_SCHEMA, TaskCanceller, TaskCreator, TaskVerifier
from later.bulk.transport.target import Target
from later.client.batches import BatchSender
from later.client.transport import BatchResult
from later.core.errors import LaterError, Refused
from later.core.task import pack_id
from later.store.keys import Bucket
from tests.bulk.conftest import LaidOutStore
from tests.bulk.validation import CALLBACK, NO_TIME_NEEDED
from tests.client.api_servers import StubAnswer, api_server, problem, stub_server

PartitionFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

JOB = "j"
COLUMN_ROWS = RowSettings(job=JOB, time_rules=NO_TIME_NEEDED)
JSON_ROWS = RowSettings(job=JOB, time_rules=NO_TIME_NEEDED, shape=RowShape.OBJECTS)


@pytest.fixture
def target(stored: LaidOutStore) -> Target:
    return Target(url=stored.settings.url, timeout_s=10, batch_size=3, retries=0)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were requested; none is made."""
    pauses: list[float] = []
    monkeypatch.setattr("later.bulk.transport.target.time.sleep", pauses.append)
    return pauses


def batch(*keys: Any, **columns: list[Any]) -> pa.RecordBatch:
    """Build rows with these keys, each a valid task but for the columns given."""
    columns = {"key": list(keys), "topic": ["order"] * len(keys), "callback": [CALLBACK] * len(keys)} | columns
    kinds = {"key": pa.string(), "delay": pa.float64()}
    return pa.record_batch({name: pa.array(values, kinds.get(name)) for name, values in columns.items()})


def json_lines(*rows: object) -> pa.RecordBatch:
    return pa.record_batch({TEXT_COLUMN: [row if isinstance(row, str) else json.dumps(row) for row in rows]})


def task_fields(key: object, **changes: Any) -> dict[str, Any]:
    return {"key": key, "topic": "order", "callback": CALLBACK, **changes}


class PartitionResult:
    """The results of a partition: the tally, and the other rows."""

    def __init__(self, results: Iterable[pa.RecordBatch]) -> None:
        rows = [row for batch in results for row in batch.to_pylist()]
        assert [row["rows"] is None for row in rows] == [True] * (len(rows) - 1) + [False], "the tally comes last, once"
        self.due_times = DueTimes(*(rows[-1].pop(name, None) for name in DueTimes._fields))
        self.tally = {name: count for name, count in rows[-1].items() if isinstance(count, int)}
        texts = rows[-1].keys() - self.tally.keys()
        self.rows = [{name: row[name] for name in texts} for row in rows[:-1]]

    @property
    def keys(self) -> list[str | None]:
        return [row["key"] for row in self.rows]


def run_partition(function: PartitionFunction, *batches: pa.RecordBatch) -> PartitionResult:
    """Run the function on these batches, after it has been pickled, as Spark does."""
    return PartitionResult(pickle.loads(pickle.dumps(function))(iter(batches)))


class TestCreating:
    def test_rows_are_created_and_counted(self, target: Target, stored: LaidOutStore) -> None:
        first, again = (
            run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), batch(*"abcde"), batch(*"fg"))
            for _ in range(2)
        )
        assert first.tally == {"rows": 7, "created": 7, "existing": 0, "rejected": 0}
        assert again.tally == {"rows": 7, "created": 0, "existing": 7, "rejected": 0}
        assert (first.rows, stored.task_count()) == ([], 7)

    def test_the_due_times_of_accepted_rows_are_counted(self, target: Target) -> None:
        now = time.time()
        times = [None, now - 5, now + 99, None, None, None]
        columns = batch(*"abcdef", delay=[None, None, None, 0, 7, -9e9], execute_time=times)
        created, dry = (
            run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS, dry_run=dry), columns)
            for dry in (False, True)
        )
        assert created.tally["rejected"] == 1
        assert created.due_times == dry.due_times == DueTimes(3, round((now - 5) * 1000), round((now + 99) * 1000))

    def test_objects_are_due_as_they_say(self, target: Target) -> None:
        lines = json_lines(task_fields(1), task_fields(2, execute_time=1.5), task_fields(3, delay=-1), "nope")
        assert run_partition(TaskCreator(target=target, row_settings=JSON_ROWS), lines).due_times[:2] == (2, 1500)

    def test_a_run_counts_what_it_creates_itself(self, target: Target) -> None:
        for run, keys in (("one", "abc"), ("two", "bcde"), ("two", "bcde")):
            run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS, run=run), batch(*keys))
        for counter, created in (("one", 3), ("two", 2), (None, 5)):
            with target.open_transport(JOB, counter) as transport:
                assert transport.counts().created == created

    def test_a_partition_without_rows_is_counted_too(self, target: Target) -> None:
        nothing = {"rows": 0, "created": 0, "existing": 0, "rejected": 0}
        assert run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS)).tally == nothing
        assert (
            run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), batch(), batch(delay=[])).tally
            == nothing
        )

    def test_a_bad_row_is_returned_with_its_field_and_the_reason(self, target: Target) -> None:
        rows = batch("a", None, "c", "d", delay=[-5, 1, 2, float("nan")])
        result = run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), rows)
        assert result.tally == {"rows": 4, "created": 1, "existing": 0, "rejected": 3}
        number = "delay: expected a number of seconds ≥ 0, got"
        rejects = [
            (row["key"], row["field"], row["reason"], json.loads(row["row"]).get("delay")) for row in result.rows[:2]
        ]
        assert rejects == [(None, "key", MISSING_KEY, 1.0), ("a", "delay", f"{number} -5", -5.0)]
        assert result.rows[2] == {
            "key": "d", "field": "delay", "code": "invalid", "expected": "a number of seconds ≥ 0", "got": "nan",
            "file": None, "position": None, "reason": f"{number} nan",
            "row": f'{{"key":"d","topic":"order","callback":"{CALLBACK}","delay":NaN}}',
        }  # fmt: skip

    def test_a_batch_of_bad_rows_does_not_end_the_partition(self, target: Target) -> None:
        result = run_partition(
            TaskCreator(target=target, row_settings=COLUMN_ROWS),
            batch(None, None, delay=[1, 1]),
            batch("a", "b", delay=[-1, 1]),
        )
        assert result.tally == {"rows": 4, "created": 1, "existing": 0, "rejected": 3}

    def test_at_most_max_examples_rows_are_returned_and_all_are_counted(self, target: Target) -> None:
        rows = [batch(*[None] * 4), batch(*[None] * 4)]
        for max_examples, returned in ((None, 8), (0, 0), (5, 5), (9, 8)):
            result = run_partition(
                TaskCreator(target=target, row_settings=COLUMN_ROWS, max_examples=max_examples), *rows
            )
            assert (len(result.rows), result.tally["rejected"]) == (returned, 8)

    def test_rows_with_the_same_key_are_one_task(self, target: Target, stored: LaidOutStore) -> None:
        result = run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), batch(*"aaaab"), batch(*"ba"))
        assert (result.tally["created"], result.tally["existing"], stored.task_count()) == (2, 5, 2)

    def test_a_key_is_the_same_in_columns_and_in_json(self, target: Target) -> None:
        numbers = pa.record_batch({"key": [1, 2], "topic": ["order"] * 2, "callback": [CALLBACK] * 2})
        run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), batch("1", "2"))
        assert run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), numbers).tally["existing"] == 2
        assert (
            run_partition(
                TaskCreator(target=target, row_settings=JSON_ROWS), json_lines(task_fields(1), task_fields("2"))
            ).tally["existing"]
            == 2
        )

    def test_a_dry_run_creates_nothing_and_returns_the_same_rows(self, target: Target, stored: LaidOutStore) -> None:
        rows = batch("a", None, "c", delay=[-5, 1, 2])
        dry = run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS, dry_run=True), rows)
        assert (dry.tally["rows"], dry.tally["rejected"], stored.task_count()) == (3, 2, 0)
        assert dry.rows == run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), rows).rows

    def test_a_malformed_line_is_returned_unchanged(self, target: Target) -> None:
        result = run_partition(
            TaskCreator(target=target, row_settings=JSON_ROWS),
            json_lines(task_fields(1), "nope", "", task_fields(2, x=1), task_fields(None), task_fields(3, id="x")),
        )
        assert result.tally == {"rows": 5, "created": 1, "existing": 0, "rejected": 4}
        assert {row["reason"].partition(":")[0] for row in result.rows} == {"expected JSON", "x", "key", "id"}
        assert "nope" in {row["row"] for row in result.rows}

    def test_a_column_named_value_does_not_make_rows_json(self, target: Target) -> None:
        with pytest.raises(Refused, match="value: unknown column"):
            run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), json_lines(task_fields(1)))

    def test_results_have_the_schema_that_spark_expects(self, target: Target) -> None:
        for function, schema in (
            (TaskCreator(target=target, row_settings=COLUMN_ROWS), CREATE_SCHEMA),
            (TaskVerifier(target=target, row_settings=COLUMN_ROWS), STATUS_SCHEMA),
        ):
            for result in function(iter([batch(None, "b", delay=[1, -1])])):
                assert result.schema == schema

    @given(st.data())
    @settings(max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @pytest.mark.parametrize("shards", [1], indirect=True)
    def test_sums_are_exact_whatever_the_rows(self, target: Target, stored: LaidOutStore, data: st.DataObject) -> None:
        text = st.none() | st.sampled_from(
            ["", " ", "5", "-5", "1e999", "NaN", "{}", '{"a":"b"}', CALLBACK, "a/b", "\x00é"]
        )
        names = ["key", "topic", "callback", "content", "delay", "execute_time", "retry", "ttl", "headers"]
        table = data.draw(st.lists(st.tuples(*[text] * len(names)), max_size=12))
        rows = pa.table([pa.array(column, pa.string()) for column in zip(*table, strict=True)] or [[]] * 9, names)
        before = stored.task_count()

        result = run_partition(
            TaskCreator(target=target, row_settings=COLUMN_ROWS),
            *[b for b in rows.to_batches(max_chunksize=5) if table],
        )

        tally = result.tally
        assert tally["rows"] == len(table) == tally["created"] + tally["existing"] + tally["rejected"]
        assert tally["rejected"] == len(result.rows)
        assert tally["created"] == stored.task_count() - before


class TestOverTheApi:
    def test_rows_of_any_size_are_counted_once(self) -> None:
        sizes = [0, 900_000, 1_100_000, 900_000, 17_000_000, *[900_000] * 20]
        rows = batch(*map(str, range(len(sizes))), content=["x" * size for size in sizes])
        with api_server() as api:
            result = run_partition(TaskCreator(target=Target(url=api.url), row_settings=COLUMN_ROWS), rows)
        assert result.tally == {"rows": 25, "created": 23, "existing": 0, "rejected": 2}
        assert [(row["key"], row["reason"]) for row in result.rows] == [
            ("2", "expected a body of at most 1048576 bytes"),
            ("4", "expected a body of at most 16776192 bytes"),
        ]

    def test_a_partition_waits_for_an_unavailable_store(self, pauses: list[float]) -> None:
        with api_server() as api:
            api.fixture.client.shards_down = [0]

            def restore(pause: float) -> None:
                api.fixture.client.shards_down = []

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("later.bulk.transport.target.time.sleep", restore)
                result = run_partition(TaskCreator(target=Target(url=api.url), row_settings=COLUMN_ROWS), batch(*"abc"))
        assert result.tally == {"rows": 3, "created": 3, "existing": 0, "rejected": 0}

    def test_a_store_that_stays_unavailable_fails_the_partition(self, pauses: list[float]) -> None:
        with (
            stub_server(problem(503, "the store is gone")) as api,
            pytest.raises(LaterError, match=r"gone \(tried 3 times\)"),
        ):
            run_partition(TaskCreator(target=Target(url=api.url, retries=2), row_settings=COLUMN_ROWS), batch("a"))
        assert len(pauses) == 2

    def test_a_server_that_is_not_later_fails_the_partition(self) -> None:
        with (
            stub_server(StubAnswer(200, b"<html>")) as api,
            pytest.raises(LaterError, match="is this the URL of later"),
        ):
            run_partition(TaskCreator(target=Target(url=api.url), row_settings=COLUMN_ROWS), batch("a"))


class TestUnavailableStore:
    def test_opening_the_store_is_retried(self, tmp_path: Any, pauses: list[float]) -> None:
        unreachable = Target(url=f"unix://{tmp_path}/none", retries=2)
        with pytest.raises(LaterError, match=r"cannot be reached: .* \(tried 3 times\)"):
            run_partition(TaskCreator(target=unreachable, row_settings=COLUMN_ROWS), batch("a"))
        assert len(pauses) == 2


class TestVerifying:
    @pytest.fixture(autouse=True)
    def tasks(self, target: Target, stored: LaidOutStore) -> None:
        """Create a to d and make them pending, dead, ended and cancelled."""
        run_partition(TaskCreator(target=target, row_settings=COLUMN_ROWS), batch(*"abcd"))
        _, dead, ended, gone = task_ids(JOB, [b"a", b"b", b"c", b"d"])
        score = 9_000_000_000_000
        stored.redis.zrem(stored.keys.shard_of(dead).bucket(Bucket.DELAY, b"order"), pack_id(dead))
        stored.redis.zadd(stored.keys.shard_of(dead).bucket(Bucket.DEAD, b"order"), {pack_id(dead): score})
        for id in (ended, gone):
            stored.redis.hdel(stored.keys.shard_of(id).pool, pack_id(id))
            stored.redis.zrem(stored.keys.shard_of(id).bucket(Bucket.DELAY, b"order"), pack_id(id))
        stored.redis.zadd(stored.keys.shard_of(ended).done, {pack_id(ended): score})

    def test_each_row_is_counted_by_its_tasks_status(self, target: Target) -> None:
        result = run_partition(
            TaskVerifier(target=target, row_settings=COLUMN_ROWS), batch("a", "b", "c", "d", "e", None, "a")
        )
        assert result.tally == {
            "rows": 7,
            "pending": 2,
            "in_flight": 0,
            "dead": 1,
            "ended": 1,
            "missing": 2,
            "unfit": 1,
        }
        assert [(row["key"], row["id"]) for row in result.rows] == list(
            zip("de", task_ids(JOB, [b"d", b"e"]), strict=True)
        )
        assert json.loads(result.rows[0]["row"]) == {"key": "d", "topic": "order", "callback": CALLBACK}

    def test_a_rejected_row_is_missing_or_unfit(self, target: Target) -> None:
        result = run_partition(
            TaskVerifier(target=target, row_settings=JSON_ROWS),
            json_lines(task_fields("x", delay=-5), "nope", task_fields(None), task_fields("a")),
        )
        assert result.tally == {
            "rows": 4,
            "pending": 1,
            "in_flight": 0,
            "dead": 0,
            "ended": 0,
            "missing": 1,
            "unfit": 2,
        }

    def test_at_most_max_examples_rows_without_a_task_are_returned(self, target: Target) -> None:
        result = run_partition(
            TaskVerifier(target=target, row_settings=COLUMN_ROWS, max_examples=3), batch("u", "v"), batch("w", "x", "y")
        )
        assert (result.keys, result.tally["missing"]) == (["u", "v", "w"], 5)

    def test_a_partition_without_rows_is_counted_too(self, target: Target) -> None:
        assert set(run_partition(TaskVerifier(target=target, row_settings=COLUMN_ROWS)).tally.values()) == {0}
        assert set(run_partition(TaskCanceller(target=target, row_settings=COLUMN_ROWS), batch()).tally.values()) == {0}

    def test_a_task_that_was_in_flight_is_counted_apart(self, target: Target, stored: LaidOutStore) -> None:
        (id,) = task_ids(JOB, [b"a"])
        shard = stored.keys.shard_of(id)
        stored.redis.zrem(shard.bucket(Bucket.DELAY, b"order"), pack_id(id))
        stored.redis.zadd(shard.bucket(Bucket.UNACK, b"order"), {pack_id(id): 9_000_000_000_000})
        result = run_partition(TaskCanceller(target=target, row_settings=COLUMN_ROWS), batch("a", "b", "a"))
        assert (result.tally["in_flight"], result.tally["dead"], result.tally["pending"]) == (2, 1, 0)

    def test_only_pending_tasks_are_cancelled(self, target: Target, stored: LaidOutStore) -> None:
        result = run_partition(
            TaskCanceller(target=target, row_settings=COLUMN_ROWS), batch("a", "a", "b", "c", "d", None)
        )
        assert result.tally == {
            "rows": 6,
            "pending": 2,
            "in_flight": 0,
            "dead": 1,
            "ended": 1,
            "missing": 1,
            "unfit": 1,
        }
        assert (result.rows, stored.task_count()) == ([], 1)
        assert (
            run_partition(TaskCanceller(target=target, row_settings=COLUMN_ROWS), batch("a", "b", "c")).tally["missing"]
            == 1
        )


def test_tasks_are_created_in_the_order_of_their_due_times(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store inserts sorted tasks faster. Spark has not sorted rows whose positions are counted."""
    sent: list[bytes] = []
    create = BatchSender.create

    def record(sender: BatchSender, bodies: Sequence[bytes]) -> Iterator[BatchResult]:
        sent.extend(bodies)
        return create(sender, bodies)

    monkeypatch.setattr(BatchSender, "create", record)
    rows = [{"key": delay, "topic": "order", "callback": CALLBACK, "delay": delay} for delay in (50, 20, 40, 10, -30)]
    results = TaskCreator(target=target, row_settings=JSON_ROWS)(iter([json_lines(*rows[:2]), json_lines(*rows[2:])]))

    assert [row["key"] for batch in results for row in batch.to_pylist() if row["key"] is not None] == ["-30"]
    assert [json.loads(body)["delay"] for body in sent] == [-30, 10, 20, 40, 50]
