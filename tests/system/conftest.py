"""Fixtures for tests that start processes; every test of this folder is marked `system`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.system import canaries
from tests.system.daemons import kill_orphaned_store
from tests.system.receivers import Receiver, run_receiver
from tests.system.stores import StoreServer, run_store

HERE = Path(__file__).parent
TAIL = 6000
"""Characters of each log that a failed test shows."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of its processes to the report of a failed test."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("folder")
    if report.failed and folder is not None:
        report.sections += [
            (f"{log.relative_to(folder)} (its end)", log.read_text(errors="replace")[-TAIL:])
            for log in sorted(folder.rglob("*.log"))
        ]
    return report


@pytest.fixture(scope="session", autouse=True)
def checked_processes() -> Iterator[None]:
    """No process that a test starts has a secret among its arguments or in its output."""
    with canaries.checked_processes():
        yield


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-processes"], autouse=True)
def processes(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of processes of each daemon: every promise holds for one and for several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LATER_PROCESSES", str(request.param))
        yield request.param


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The directory for logs, sockets and data of the test's processes. In no log may be a secret."""
    yield tmp_path
    canaries.check_logs(tmp_path)


@pytest.fixture
def data(folder: Path) -> Iterator[Path]:
    """A data directory for `later up`; an orphaned store in it is killed after the test."""
    data = folder / "data"
    yield data
    kill_orphaned_store(data)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that answers done to every call without a rule."""
    with run_receiver() as receiver:
        yield receiver


@pytest.fixture
def store(folder: Path) -> Iterator[StoreServer]:
    """A Valkey server of the test's own that syncs every write."""
    with run_store("valkey", folder, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server
