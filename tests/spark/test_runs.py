"""The summary of a run: what it created itself, what the store lost, when its tasks are due, and where they are."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from later.bulk.transport.target import Target
from tests.spark import faulty_proxy
from tests.spark.faulty_proxy import ProxiedRequest, run_proxy
from tests.spark.later_server import (
    DAY_S,
    UNUSED_CALLBACK,
    LaterServer,
    run_bulk,
    run_server,
    task_ids,
    write_parquet,
)
from tests.system.api_client import call, get, post

COUNT = 3000
BATCH = 300


def write_input(folder: Path, topic: str, count: int = COUNT) -> Path:
    columns = {"key": list(range(count)), "topic": [topic] * count, "callback": [UNUSED_CALLBACK] * count}
    return write_parquet(folder / "orders", 1, **columns, delay=[DAY_S + key for key in range(count)])


@contextmanager
def run_lossy_server(folder: Path) -> Iterator[LaterServer]:
    """Run a server of a test's own, whose data the test may destroy."""
    (folder / "store").mkdir()
    with run_server(folder / "store") as server:
        get(server.url, "/jobs/none")  # the daemon lays its store out before its first command
        yield server


def call_before_the_count(lose: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store lose tasks between a job and its summary."""
    count_created = Target.count_created

    def lose_and_count(target: Target, job: str, run_id: str) -> int:
        lose()
        return count_created(target, job, run_id)

    monkeypatch.setattr(Target, "count_created", lose_and_count)


def test_a_run_counts_only_what_it_creates_itself(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    """Another run of the same job creates half of the tasks meanwhile."""
    others = task_ids("shared", range(COUNT // 2))

    def create_half(request: ProxiedRequest) -> None:
        task = {"topic": "shared", "callback": UNUSED_CALLBACK, "delay": DAY_S}
        post(server.url, "/create/batch?job=shared&run=other", [{"id": id, **task} for id in others])
        request.forward()
        faulty_proxy.drop_answer(request)

    orders = write_input(tmp_path, "shared")
    with run_proxy(server.url, create_half) as proxy:
        result = run_bulk(spark, "create", orders, "--job", "shared", "--url", proxy.url, "--batch", BATCH, "--json")

    assert result.status == 0, result.err
    assert result.counts == {"rows": COUNT, "created": COUNT // 2, "existing": COUNT // 2, "lost": 0, "rejected": 0}
    own = get(server.url, f"/jobs/shared?run={result.json['run']}").body
    assert (own["created"], own["existing"]) == (COUNT // 2, COUNT // 2)
    assert get(server.url, "/jobs/shared?run=other").body["created"] == COUNT // 2
    assert server.job_counts("shared")[0] == COUNT


@pytest.mark.parametrize("transport", ["api", "store"])
def test_rows_without_a_callback_become_tasks_of_a_pulled_topic(
    transport: str, spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    topic = f"pulled-{transport}"
    rows = tmp_path / "rows.csv"
    rows.write_text(f"key,topic,delay,callback\n1,{topic},0,\n2,{topic},0,{UNUSED_CALLBACK}\n")
    assert call(server.url, "PATCH", f"/topics/{topic}/policy", {"deliver": "pull"}).status == 200

    url = server.url if transport == "api" else server.store_url
    result = run_bulk(spark, "create", rows, "--job", topic, "--url", url, "--json")

    assert (result.counts["created"], result.counts["rejected"]) == (1, 1), result.err
    assert "(deliver pull)" in result.err
    [task] = post(server.url, "/claim", {"topic": topic, "max": 10}).body["tasks"]
    assert [task["id"]] == task_ids(topic, [1])


@pytest.mark.parametrize("transport", ["api", "store"])
def test_tasks_that_the_store_lost_are_reported(
    transport: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store dies between the job and its summary, and comes back without the end of its file."""
    with run_lossy_server(tmp_path) as server:

        def cut_off_the_end() -> None:
            server.store_server.kill()
            (file,) = (tmp_path / "store").rglob("*.incr.aof")
            with file.open("r+b") as content:
                content.truncate(file.stat().st_size * 2 // 3)
            server.store_server.start()

        call_before_the_count(cut_off_the_end, monkeypatch)
        url = server.url if transport == "api" else server.store_url
        options = ("--job", "lost", "--url", url, "--batch", BATCH)
        result = run_bulk(spark, "create", write_input(tmp_path, "lost"), *options, "--json")
        monkeypatch.undo()
        verified = run_bulk(spark, "verify", tmp_path / "orders", *options, "--json")
        left = len(server.topic_ids("lost"))

        assert (result.status, result.json["outcome"]) == (5, "lost"), result.err
        assert 0 < left < COUNT
        assert (result.counts["created"], result.counts["lost"]) == (left, COUNT - left)
        assert f"later: the store has lost at least {COUNT - left:,} tasks that it had confirmed" in result.err
        assert verified.counts["missing"] == COUNT - left


@pytest.mark.parametrize("transport", ["api", "store"])
def test_an_emptied_store_has_lost_all(
    transport: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_lossy_server(tmp_path) as server:
        call_before_the_count(server.redis.flushall, monkeypatch)
        url = server.url if transport == "api" else server.store_url
        result = run_bulk(spark, "create", write_input(tmp_path, "x"), "--job", "x", "--url", url, "--json")
    assert result.status == 5, result.err
    assert (result.counts["created"], result.counts["lost"]) == (0, COUNT)


def test_the_summary_says_when_tasks_are_due_and_where_they_are(
    spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    rows = [{"execute_time": 1000}, {"delay": 0}, {"delay": DAY_S}, {"delay": 2 * DAY_S}, {"delay": -1}]
    task = {"topic": "due", "callback": UNUSED_CALLBACK}
    orders = tmp_path / "orders.ndjson"
    orders.write_text("\n".join(json.dumps({"key": key, **task, **row}) for key, row in enumerate(rows)))
    started = time.time()

    options = ("--job", "due", "--url", server.url)
    dry = run_bulk(spark, "create", orders, *options, "--dry-run", "--json")
    result = run_bulk(spark, "create", orders, *options, "--max-rejects", 1)

    due = dry.json["due"]
    assert (due["at_once"], due["earliest"]) == (2, "1970-01-01T00:16:40Z")
    latest = datetime.fromisoformat(due["latest"]).astimezone(UTC).timestamp()
    assert latest == pytest.approx(started + 2 * DAY_S, abs=60)
    _, due_line, where = result.out.splitlines()
    assert due_line.startswith("due: 2 at once; the earliest 1970-01-01T00:16:40Z, the latest 20")
    assert where.startswith("job due, run ")
    assert where.endswith(f", at {server.url}")


@pytest.mark.parametrize("name", ["due", "dealy"])
def test_a_misspelt_time_creates_nothing(name: str, spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    orders = tmp_path / "orders.csv"
    orders.write_text(f"key,topic,callback,{name}\n1,misspelt-{name},{UNUSED_CALLBACK},{DAY_S}\n")
    result = run_bulk(spark, "create", orders, "--job", "misspelt", "--url", server.url, "--json")
    assert (result.status, result.json["outcome"]) == (2, "usage")
    assert f"did you mean '{name}'?" in result.json["error"]
    assert server.topic_ids(f"misspelt-{name}") == []

    accepted = run_bulk(spark, "create", orders, "--job", f"now-{name}", "--url", server.url, "--now", "--json")
    assert (accepted.status, accepted.json["due"]["at_once"]) == (0, 1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "redis://127.0.0.1:9/0"])
def test_a_target_that_is_not_there_is_not_reached(url: str, spark: SparkSession, tmp_path: Path) -> None:
    result = run_bulk(spark, "create", write_input(tmp_path, "x"), "--job", "x", "--url", url, "--json")
    assert (result.status, result.json["outcome"], result.json["url"]) == (3, "unreached", url)


def test_a_worker_that_no_longer_reaches_the_target_is_not_reached(
    spark: SparkSession, server: LaterServer, tmp_path: Path
) -> None:
    with run_proxy(server.url, *[faulty_proxy.reject_for_now(503)] * 50) as proxy:
        options = ("--job", "x", "--url", proxy.url, "--retries", 0, "--json")
        result = run_bulk(spark, "create", write_input(tmp_path, "x"), *options)
    assert (result.status, result.json["outcome"]) == (3, "unreached")


def test_an_input_that_is_not_there_is_a_usage_error(spark: SparkSession, server: LaterServer, tmp_path: Path) -> None:
    result = run_bulk(spark, "create", tmp_path / "none", "--job", "x", "--url", server.url, "--json")
    assert (result.status, result.json["outcome"]) == (2, "usage")
    assert str(tmp_path / "none") in result.json["error"]
