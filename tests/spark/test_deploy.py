"""The example job of docs/spark.md, submitted to Spark with later as a zip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import later
from later.bulk.spark.preflight import check_packages
from tests.system.api_client import post
from tests.system.daemons import environment, kill_orphaned_store, run_up

PACKAGE = Path(later.__file__).parent
JOB = PACKAGE.parent / "deploy" / "spark" / "reminders.py"
DAY = date(2026, 12, 1)
HOOK = "http://127.0.0.1:9/hook"


def write_appointments(file: Path) -> Path:
    hours = [datetime(DAY.year, DAY.month, day, 9, tzinfo=UTC) for day in (1, 1, 2, 1, 1)]
    table = {
        "id": [1, 2, 3, 4, 5],
        "starts_at": pa.array(hours, pa.timestamp("us", "UTC")),
        "hook": [HOOK, HOOK, HOOK, None, HOOK],
        "customer": ["Ada", "Bob", "Cyd", "Dan", "Eve"],
        "cancelled": [False, True, False, False, None],
    }
    pq.write_table(pa.table(table), file)
    return file


def write_zip(file: Path) -> Path:
    """Write the package and its scripts, as `git archive` does."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]:
            archive.write(path, path.relative_to(PACKAGE.parent))
    return file


def submit(tmp_path: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
        *("--conf", "spark.sql.session.timeZone=UTC", "--py-files", str(write_zip(tmp_path / "later.zip"))),
        *(str(JOB), "--appointments", str(write_appointments(tmp_path / "appointments.parquet"))),
        *("--day", str(DAY), "--url", url, *options),
    ]
    env = {**environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=env, cwd=tmp_path)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    kill_orphaned_store(tmp_path / "data")


def test_the_example_creates_a_reminder_for_each_appointment_not_cancelled(tmp_path: Path, data: Path) -> None:
    check_packages()
    with run_up(tmp_path, data) as up:
        result = submit(tmp_path, up.url, "--max-rejects", "1")
        assert result.returncode == 0, result.stderr
        tasks = post(up.url, "/list", {"topic": "reminders", "state": "delay"}).body["tasks"]
        assert {task["content"] for task in tasks} == {
            '{"appointment":1,"customer":"Ada","starts_at":"2026-12-01T09:00:00.000Z"}',
            '{"appointment":5,"customer":"Eve","starts_at":"2026-12-01T09:00:00.000Z"}',
        }
        for task in tasks:
            assert task["id"].startswith("reminders-2026-12-01:")
            assert task["execute_time"] == datetime(2026, 11, 30, 9, tzinfo=UTC).timestamp()
            assert (task["callback"], task["max_retry"]) == (HOOK, 5)
        assert result.stdout == (
            "reminders-2026-12-01: 4 appointments, 3 not cancelled; in all runs 2 created, 0 already there, 1 refused\n"
        )
