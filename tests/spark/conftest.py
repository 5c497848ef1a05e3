"""Fixtures for tests that need Spark; every test of this folder is marked `spark`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from later.bulk.spark.preflight import check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
MASTER = "local[2,4]"
"""As `later bulk` has it, on two cores: a task of Spark's may fail three times."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are many small jobs: a compiler that thinks less, and a collector without threads, make them a third faster."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests of a run, active in it: commands that are called in the same process run in it, too.

    Without Spark or a Java for it, whatever asks for it fails, with what to install.
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
