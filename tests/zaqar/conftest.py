"""Fixtures for Zaqar's tests and client: a daemon with one shard and with many, in one process and in two.

Every test of this folder is marked `zaqar`. `make test-zaqar` installs what they need; without it none is collected.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.daemons import Daemon, kill_orphaned_store, run_command, run_up
from tests.system.waiting import wait_until
from tests.zaqar.configurations import CONFIGURATIONS
from tests.zaqar.packages import make_importable

if TYPE_CHECKING:
    from zaqarclient.queues.v2.client import Client

HERE = Path(__file__).parent
TAIL = 6000
"""Characters of the daemon's log that a failed test shows."""

collect_ignore_glob = [] if make_importable() else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and let one process of pytest run all tests of a configuration, on one daemon."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.zaqar)
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # the client leaves its sockets open
            callspec = getattr(item, "callspec", None)
            item.add_marker(pytest.mark.xdist_group(str(callspec and callspec.params.get("daemon"))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the daemon's log to the report of a failed test."""
    report = yield
    daemon = getattr(item, "funcargs", {}).get("daemon")
    if report.failed and daemon is not None:
        report.sections.append(("the daemon's log (its end)", daemon.log.read_text(errors="replace")[-TAIL:]))
    return report


@pytest.fixture(scope="session", params=CONFIGURATIONS, ids=str)
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A running `later up`. It serves all tests of its configuration, each in a project of its own.

    When they have run, nothing is wrong in its store.
    """
    shards, processes = request.param
    folder = tmp_path_factory.mktemp("zaqar")
    data = folder / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATER_PROCESSES", str(processes))
        with run_up(folder, data, "--shards", str(shards)) as up:
            if processes > 1:
                up.wait_for_event("all processes are up")
            wait_until(lambda: all(up.is_ready() for _ in range(4)), "whichever process is asked to be ready")
            yield up
            found = run_command("doctor", "--data", str(data))
    kill_orphaned_store(data)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout


@pytest.fixture
def project() -> str:
    """A project that no other test has."""
    return uuid.uuid4().hex


@pytest.fixture
def client(daemon: Daemon, project: str) -> Client:
    """Zaqar's client, in the test's project."""
    from tests.zaqar.clients import open_client

    return open_client(daemon.url, project)


@pytest.fixture
def other(daemon: Daemon, project: str) -> Client:
    """Another client in the same project, with another id."""
    from tests.zaqar.clients import open_client

    return open_client(daemon.url, project)
