"""Jobs on a daemon that asks for keys: each executor reads the key from a file, and no plan holds it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from later.bulk.spark.errors import translate_errors
from later.client.http import ApiClient
from later.core.api_keys import make_key_text
from later.core.errors import LaterError
from tests.spark.later_server import later_writer, rows
from tests.system.daemons import run_up


def test_executors_read_the_key_and_no_plan_holds_it(spark: SparkSession, tmp_path: Path) -> None:
    key, key_file = make_key_text(), tmp_path / "key"
    key_file.write_text(key, encoding="utf-8")
    data = tmp_path / "data"
    with run_up(tmp_path, data, "--root-key-file", str(key_file)) as daemon:
        with pytest.raises(LaterError, match="this call needs a key"), translate_errors():
            later_writer(rows(spark, "order", 10), daemon.url, "j").save()
        later_writer(rows(spark, "order", 10), daemon.url, "j", keyFile=key_file).save()
        client = ApiClient(daemon.url, 10, time.time, key)
        assert client.ask("GET", "/jobs/j")["created"] == 10
        client.close()
        assert daemon.stop() == 0
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    plans = [executions.apply(n).physicalPlanDescription() for n in range(executions.size())]
    assert any("ArrowEvalPython" in plan or "later" in plan.lower() for plan in plans)
    assert not any(key in plan for plan in plans)
    assert key not in str(spark.sparkContext.getConf().getAll())
