"""A standalone Spark cluster: a master and two workers, with speculative execution of slow tasks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.spark.conftest import QUICK
from tests.spark.faulty_proxy import delay_until, pass_through, run_proxy
from tests.spark.later_server import DAY_S, UNUSED_CALLBACK, free_port, run_process, run_server, task_ids, write_parquet
from tests.system.daemons import COMMAND, environment
from tests.system.waiting import wait_until

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
HOSTS = ("127.0.0.1", "localhost")
"""Spark runs no task twice on one host; these two hosts are the same machine."""
MEMORY = "512m"
COUNT = 2000
BATCH = 250

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
LOW_MEMORY = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": MEMORY,
    "spark.executor.memory": MEMORY,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Run a cluster; return its master's URL."""
    with run_cluster(tmp_path) as url:
        yield url


@contextmanager
def run_cluster(folder: Path) -> Iterator[str]:
    env = {"SPARK_DAEMON_MEMORY": MEMORY, "SPARK_DAEMON_JAVA_OPTS": QUICK, "SPARK_NO_DAEMONIZE": "1"}
    port = free_port()
    address = ("--host", "127.0.0.1", "--port", port, "--webui-port", 0)
    with ExitStack() as running:
        log = folder / "master.log"
        name = "org.apache.spark.deploy.master.Master"
        running.enter_context(run_process(SPARK_CLASS, name, *address, log=log, env=env))
        wait_until(lambda: "New state: ALIVE" in log.read_text(), "the master is alive", 60)
        for host in HOSTS:
            name = "org.apache.spark.deploy.worker.Worker"
            size = ("--cores", 1, "--memory", MEMORY, "--work-dir", folder / host, "--webui-port", 0)
            worker = (SPARK_CLASS, name, "--host", host, *size, f"spark://127.0.0.1:{port}")
            running.enter_context(run_process(*worker, log=folder / f"{host}.log", env=env))
        yield f"spark://127.0.0.1:{port}"


def test_a_speculated_task_creates_each_of_its_tasks_once(cluster: str, tmp_path: Path) -> None:
    """One batch is held until the job has ended by the other attempt, so the slower attempt writes after that."""
    keys, job_ended = range(COUNT), threading.Event()
    constants = {name: [value] * COUNT for name, value in (("topic", "slow"), ("callback", UNUSED_CALLBACK))}
    orders = write_parquet(tmp_path / "orders", 8, key=list(keys), delay=[DAY_S + key % 9 for key in keys], **constants)

    with (
        run_server(tmp_path) as server,
        run_proxy(server.url, pass_through, delay_until(job_ended.is_set)) as proxy,
    ):
        conf = [word for name, value in {**LOW_MEMORY, **SPECULATION}.items() for word in ("--conf", f"{name}={value}")]
        options = ("--url", proxy.url, "--batch", str(BATCH), "--wait", "100", "--master", cluster)
        result = subprocess.run(
            [*COMMAND, "bulk", "create", str(orders), "--job", "slow", *options, *conf, "--json"],
            capture_output=True,
            text=True,
            timeout=90,
            env={**environment(), "PYSPARK_PYTHON": sys.executable},
            check=False,
        )

        assert result.returncode == 0, result.stderr
        counts = json.loads(result.stdout)["counts"]
        assert (counts["rows"], counts["created"], counts["existing"], counts["rejected"]) == (COUNT, COUNT, 0, 0)
        job_ended.set()
        wait_until(lambda: proxy.is_idle, "the slower attempt's batch is answered")
        assert server.topic_ids("slow") == task_ids("slow", keys)
        assert server.job_counts("slow") == (COUNT, 0, 0)
        assert proxy.repeated_batches
