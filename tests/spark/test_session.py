"""A session: its output, its Python, the texts of its errors, and the processes that it leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from later.bulk.spark.errors import translate_errors
from later.bulk.spark.session import open_session
from later.core.errors import LaterError, StoreDown
from tests.spark.later_server import session_pids
from tests.system.waiting import wait_until

DEADLINE_S = 60
TOO_MUCH_MEMORY = {"spark.driver.memory": "99999999g"}


def start_program(
    body: str,
    master: str = "local[2,4]",
    settings: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a process that prints the id of its Java and runs `body` in a session, as a command does."""
    code = f"""
import sys, time
from later.bulk.spark.errors import translate_errors
from later.cli.exit import exit_code

def job():
    from later.bulk.spark.session import open_session
    with open_session({master!r}, {dict(settings or {})!r}, "a test") as spark, translate_errors():
        from pyspark import SparkContext
        print(SparkContext._gateway.proc.pid, flush=True)
{textwrap.indent(textwrap.dedent(body), " " * 8)}
    return 0

sys.exit(exit_code(job))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
        start_new_session=True,
    )


def finish(program: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Return the exit status, the lines of standard output, and standard error."""
    with program:
        out, err = program.communicate(timeout=DEADLINE_S)
    return program.returncode, out.splitlines(), err


def is_gone(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    return False


def test_a_job_prints_nothing_of_its_own_and_ctrl_c_leaves_no_process() -> None:
    program = start_program("""
        def wait(batches):
            time.sleep(60)
            yield from batches

        print(spark.range(10).count(), flush=True)
        try:
            spark.range(1).select("nope")
        except Exception as error:
            print(type(error).__name__, flush=True)
        spark.range(2).mapInArrow(wait, "id long").collect()
        """)
    assert program.stdout is not None
    java, count, error = (next(program.stdout).strip() for _ in range(3))

    os.killpg(program.pid, signal.SIGINT)  # as a terminal does: the workers get it too

    status, _, err = finish(program)
    assert (count, error, status, err) == ("10", "AnalysisException", 130, "")
    assert is_gone(java)


def test_ctrl_c_while_java_starts_leaves_no_java() -> None:
    program = start_program("raise AssertionError")
    wait_until(lambda: any(map(is_java_of_spark, session_pids(program.pid))), "Java starts")

    os.killpg(program.pid, signal.SIGINT)

    assert finish(program) == (130, [], "")
    assert session_pids(program.pid) == []


def is_java_of_spark(pid: int) -> bool:
    with suppress(OSError):
        name, *arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return name.endswith("java") and "pyspark-shell" in arguments
    return False


def test_a_spark_connect_server_in_the_environment_is_ignored() -> None:
    program = start_program("print(spark.range(3).count())", environ={"SPARK_REMOTE": "sc://127.0.0.1:1"})
    status, out, err = finish(program)
    assert (status, out[1:], err) == (0, ["3"], "")


def test_a_second_ctrl_c_does_not_interrupt_the_shutdown() -> None:
    program = start_program("""
        from pyspark import SparkContext

        stop = SparkContext.stop

        def slow_stop(context):
            print("stopping", flush=True)
            time.sleep(1)
            stop(context)
            print("stopped", flush=True)

        SparkContext.stop = slow_stop
        print(spark.range(10).count(), flush=True)
        time.sleep(60)
        """)
    assert program.stdout is not None
    java, *_ = (next(program.stdout).strip() for _ in range(2))
    os.killpg(program.pid, signal.SIGINT)
    assert next(program.stdout) == "stopping\n"

    os.killpg(program.pid, signal.SIGINT)

    assert finish(program) == (130, ["stopped"], "")
    assert is_gone(java)


def test_a_java_that_exits_during_a_message_prints_no_traceback() -> None:
    program = start_program("""
        import socket

        with socket.create_connection(spark.sparkContext._accumulatorServer.server_address) as java:
            java.shutdown(socket.SHUT_WR)
            java.recv(1)  # returns at the end of the connection
        """)

    status, _, err = finish(program)

    assert (status, err) == (0, "")


@pytest.mark.parametrize(
    ("master", "settings", "why"),
    [
        ("nope", {}, "Master must either be yarn or start with spark, k8s, or local"),
        ("local[2]", TOO_MUCH_MEMORY, "Could not reserve enough space"),
    ],
)
def test_a_session_that_does_not_start_says_why_in_one_line(master: str, settings: dict[str, str], why: str) -> None:
    status, _, err = finish(start_program("", master, settings))

    assert err.startswith("later: Spark did not start")
    assert why in err
    assert err.count("\n") == 1
    assert status == 1


def test_with_a_log_level_the_output_of_java_is_shown() -> None:
    _, _, err = finish(start_program("", settings={**TOO_MUCH_MEMORY, "spark.log.level": "WARN"}))

    assert re.search("Could not reserve enough space.*\nlater: Spark did not start: the reason is above\n", err)


def test_without_a_java_one_line_says_what_to_install() -> None:
    status, _, err = finish(start_program("", environ={"JAVA_HOME": "/nowhere"}))

    assert err.startswith(
        "later: Spark needs Java 17 or newer, and no Java was found (JAVA_HOME is /nowhere): install one"
    )
    assert err.count("\n") == 1
    assert status == 1


def test_an_active_session_is_used_and_left_open(spark: SparkSession) -> None:
    with open_session("local[1]", {"spark.app.name": "another"}, "another") as session:
        assert session is spark

    assert spark.range(3).count() == 3


def test_local_workers_run_this_python(spark: SparkSession) -> None:
    def python_path(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(python_path, "python string").collect()

    assert row["python"] == sys.executable


def test_an_error_of_later_in_a_worker_keeps_its_text(spark: SparkSession) -> None:
    down = raising(StoreDown("the store cannot be reached: [Errno 111]: refused"))

    with pytest.raises(LaterError) as error, translate_errors():
        spark.range(1).coalesce(1).mapInArrow(down, "id long").collect()

    assert str(error.value) == "the store cannot be reached: [Errno 111]: refused"


def test_another_error_in_a_worker_has_its_line(spark: SparkSession) -> None:
    wrong = raising(KeyError("x"))

    with pytest.raises(LaterError) as error, translate_errors():
        spark.range(1).coalesce(1).mapInArrow(wrong, "id long").collect()

    assert re.fullmatch(r"a worker failed: KeyError: 'x' \(.*test_session.py, line \d+\)", str(error.value))


def raising(error: Exception) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                raise error
            yield batch

    return work


def test_a_killed_worker_is_reported(spark: SparkSession) -> None:
    def exit_at_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                os._exit(9)
            yield batch

    with pytest.raises(LaterError) as error, translate_errors():
        spark.range(1).coalesce(1).mapInArrow(exit_at_once, "id long").collect()

    assert str(error.value).startswith("Python worker exited unexpectedly")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/nowhere/at/all", "Path does not exist: file:/nowhere/at/all."),
        ("nope://h/x", "No FileSystem for scheme .*nope"),
    ],
)
def test_a_path_that_cannot_be_read_is_named(spark: SparkSession, path: str, why: str) -> None:
    with pytest.raises(LaterError, match=f"^{why}"), translate_errors():
        spark.read.parquet(path).count()


def test_a_path_that_cannot_be_written_is_named(spark: SparkSession) -> None:
    with pytest.raises(LaterError, match=r"^Mkdirs failed to create file:/proc/nope"), translate_errors():
        spark.range(1).write.parquet("/proc/nope")


def test_spark_finds_the_source_without_registration(spark: SparkSession) -> None:
    with pytest.raises(LaterError) as error, translate_errors():
        spark.range(1).write.format("later").mode("append").save()

    assert "Failed to find the data source" not in str(error.value)
    assert "url" in str(error.value)
