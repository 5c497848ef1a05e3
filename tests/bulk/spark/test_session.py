"""The settings of a session; sessions themselves are in tests/spark/test_session.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from later.bulk.spark.session import build_settings, is_local, name_master_in_errors
from later.core.errors import LaterError
from tests.cases import each_case


@each_case(
    ("master", "local"),
    [
        ("local", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://h:7077", False),
        ("yarn", False),
    ],
)
def test_a_master_is_local_or_not(master: str, local: bool) -> None:
    assert is_local(master) is local


def test_a_session_prints_nothing_and_a_local_one_listens_on_loopback() -> None:
    assert build_settings("local[*,4]", {}, "later bulk create") == {
        "spark.master": "local[*,4]",
        "spark.app.name": "later bulk create",
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.files.openCostInBytes": "65536",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def test_workers_on_other_machines_can_reach_the_driver() -> None:
    assert not build_settings("spark://h:7077", {}, "x").keys() & {"spark.driver.host", "spark.driver.bindAddress"}


def test_settings_of_the_operator_override_ours() -> None:
    conf = {"spark.driver.host": "10.0.0.1", "spark.ui.enabled": "true", "spark.log.level": "WARN"}

    assert build_settings("local[2]", conf, "x").items() >= conf.items()


def test_a_master_that_does_not_answer_is_named() -> None:
    text = "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis was created at:"
    java = SimpleNamespace(_target_id="o1", toString=lambda: text, getCause=lambda: None)

    with pytest.raises(LaterError) as error, name_master_in_errors("spark://h:7077"):
        raise Py4JJavaError("An error occurred", java)

    assert str(error.value) == "Spark did not start on spark://h:7077: it does not answer, or does not accept the job"
