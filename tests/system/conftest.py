"""Fixtures for tests that start processes; every test of this folder is marked `system`.

Several processes of pytest run them at a time. A test that is marked `alone` runs while no other one does.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.system import canaries
from tests.system.daemons import kill_orphaned_store
from tests.system.receivers import Receiver, run_receiver
from tests.system.stores import StoreServer, run_store

HERE = Path(__file__).parent
TAIL = 6000
"""Characters of each log that a failed test shows."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark the tests of this folder, and put those that run alone last, so that others wait for few of them."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)
    yield
    items.sort(key=_runs_alone)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run no test beside one that runs alone. Its time limit begins after the wait."""
    if item.get_closest_marker("system") is None:
        return (yield)
    with ExitStack() as running:
        with _hold_lock(HERE / "__init__.py", fcntl.LOCK_EX):  # or others would pass a test that waits to run alone
            running.enter_context(
                _hold_lock(HERE / "conftest.py", fcntl.LOCK_EX if _runs_alone(item) else fcntl.LOCK_SH)
            )
        return (yield)


def _runs_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@contextmanager
def _hold_lock(file: Path, kind: int) -> Iterator[None]:
    """Hold a lock of a file, exclusive or shared, against other processes of pytest."""
    with file.open() as opened:
        fcntl.flock(opened, kind)
        yield


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
