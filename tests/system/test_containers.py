"""The deployment of deploy/compose.yml at work: no folder to write to but /tmp, and metrics that Prometheus scrapes."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

import later
from tests.metrics.test_dashboard import QUERIES
from tests.servers import free_ports
from tests.system import canaries
from tests.system.api_client import call, get
from tests.system.containers import (
    DEPLOY,
    Deployment,
    contained,
    contained_environment,
    run_deployment,
    why_not,
    writable,
)
from tests.system.daemons import Daemon, environment, run_daemon_as_given
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until

pytestmark = pytest.mark.skipif(why_not() != "", reason=f"no namespace without a writable root: {why_not()}")


@pytest.fixture
def deployment(folder: Path) -> Iterator[Deployment]:
    with run_deployment(folder) as deployment:
        yield deployment


def check_health(env: dict[str, str]) -> tuple[int, str]:
    """Run the health check of the image with the environment of a container."""
    done = subprocess.run(
        [*contained(), "healthy"], capture_output=True, text=True, check=False, env={**environment(), **env}
    )
    return done.returncode, done.stdout + done.stderr


def test_nothing_but_tmp_can_be_written(tmp_path: Path) -> None:
    package = str(Path(later.__file__).parent)
    folders = [".", str(Path.home()), package, sysconfig.get_path("purelib"), str(tmp_path)]
    assert writable(folders, tmp_path) == [str(tmp_path)]


def test_everything_in_one_works_with_nothing_else_to_write_to(folder: Path, receiver: Receiver) -> None:
    data = folder / "data"
    data.mkdir()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    env = {**contained_environment(data), "HOME": "/", "LATER_LISTEN": address, "LATER_HEALTH": "off"}
    with run_daemon_as_given("up", folder, "--data", str(data / "store"), program=contained(), env=env) as up:
        wait_until(up.is_ready, "it is ready")
        assert check_health(env) == (0, f"healthy: http://{address}/livez\n")
        made = call(up.url, "POST", "/create", {"topic": "order", "callback": receiver.url()})
        wait_until(lambda: made.body["id"] in receiver.ids, "the task is delivered")
        assert up.stop() == 0
    assert check_health(env) == (1, f"later: no daemon listens at {address}\n")


def test_api_and_worker_do_their_work_with_nothing_to_write_to(deployment: Deployment, receiver: Receiver) -> None:
    key = canaries.add_key(deployment.operate("keys", "create", "admin", "--scopes", "all").strip())
    with run_daemons(deployment) as (serve, worker, envs):
        for env in envs:
            assert check_health(env)[0] == 0
        made = call(serve.url, "POST", "/create", {"topic": "order", "callback": receiver.url()}, headers=bearer(key))
        assert made.status == 200
        wait_until(lambda: made.body["id"] in receiver.ids, "the task is delivered")
        assert (serve.stop(), worker.stop()) == (0, 0)
    assert list((deployment.folder / "tmp").iterdir()) == []
    assert [check_health(env)[0] for env in envs] == [1, 1]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_scrapes_them_with_its_key_and_has_the_rules(deployment: Deployment, receiver: Receiver) -> None:
    key = canaries.add_key(deployment.operate("keys", "create", "admin", "--scopes", "all").strip())
    of_prometheus = canaries.add_key(deployment.operate("keys", "create", "prometheus", "--scopes", "metrics").strip())
    with run_daemons(deployment) as (serve, worker, _):
        for number in range(20):
            task = {"topic": f"order{number % 2}", "callback": receiver.url()}
            assert call(serve.url, "POST", "/create", task, headers=bearer(key)).status == 200
        wait_until(lambda: len(receiver.ids) == 20, "the tasks are delivered")
        with run_prometheus(deployment.folder, of_prometheus, [serve.url, worker.url]) as url:
            wait_until(lambda: query(url, 'sum(up{job="later"})') == ["2"], "both are scraped")
            groups = get(url, "/api/v1/rules").body["data"]["groups"]
            wait_until(lambda: query(url, "sum(later_topic_deliveries_total)") == ["20"], "deliveries are counted")
            assert {rule["name"] for group in groups for rule in group["rules"]} >= {"LaterDown", "LaterNoWorker"}
            assert query(url, "sum(later_delivery_slots) > 0") != []
            assert [text for text in dashboard() if error_of(url, text)] == []


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@contextmanager
def run_daemons(deployment: Deployment) -> Iterator[tuple[Daemon, Daemon, list[dict[str, str]]]]:
    """Run the API and a worker until both are ready; yield them, and the environment of each."""
    envs = [deployment.environment_of(name) for name in ("serve", "worker")]
    with deployment.run("serve", envs[0]) as serve, deployment.run("worker", envs[1]) as worker:
        wait_until(lambda: serve.is_ready() and worker.is_ready(), "both are ready")
        yield serve, worker, envs


@contextmanager
def run_prometheus(folder: Path, key: str, targets: list[str]) -> Iterator[str]:
    """Run a Prometheus with the configuration of compose.yml, but for the names of containers; yield its URL."""
    home = folder / "prometheus"
    home.mkdir()
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [url.removeprefix("http://") for url in targets]}]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    (home / "later.key").write_text(f"{key}\n")
    shutil.copy(DEPLOY / "prometheus" / "rules.yml", home)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = ["prometheus", "--config.file=prometheus.yml", f"--storage.tsdb.path={home / 'data'}",
               f"--web.listen-address={address}"]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, cwd=home, stderr=log) as process:
        try:
            wait_until(lambda: is_up(f"http://{address}"), "Prometheus is up")
            yield f"http://{address}"
        finally:
            process.terminate()


def is_up(url: str) -> bool:
    try:
        return get(url, "/-/ready").status == 200
    except OSError:
        return False


def evaluate(url: str, text: str) -> dict[str, Any]:
    """Return Prometheus's answer to a query."""
    return dict(get(url, f"/api/v1/query?query={quote(text)}").body)


def query(url: str, text: str) -> list[str]:
    """Return the values of the series of a result."""
    return [series["value"][1] for series in evaluate(url, text)["data"]["result"]]


def error_of(url: str, text: str) -> str | None:
    error = evaluate(url, text).get("error")
    return None if error is None else str(error)


def dashboard() -> list[str]:
    return [query.text for query in QUERIES]
