"""Fixtures for tests that need Spark. Every test of this folder is marked `spark`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from later.bulk.spark.preflight import check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.later_server import LaterServer

HERE = Path(__file__).parent
MASTER = "local[2,4]"
"""As in `later bulk`, but on two cores: a task of Spark may fail three times."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Less optimization and a garbage collector without threads make the many small jobs of tests a third faster."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a run. It is active, so that commands called in this process use it, too.

    Without Spark or Java, its tests fail with what to install.
    """
    check_packages()
    from later.bulk.spark.session import open_session

    settings = {
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    with open_session(MASTER, settings, "later's tests") as session:
        yield session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaterServer]:
    """A server for the tests of one file."""
    from tests.spark.later_server import run_server

    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server
