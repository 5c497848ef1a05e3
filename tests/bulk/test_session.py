"""What a session is asked for. What becomes of it: tests/spark/test_session.py."""

from __future__ import annotations

import pytest

from later.bulk.session import is_local, settings_of


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://h:7077", False),
        ("yarn", False),
    ],
)
def test_a_master_is_on_this_machine_or_not(master: str, local: bool) -> None:
    assert is_local(master) is local


def test_a_session_is_quiet_and_a_local_one_is_on_loopback() -> None:
    assert settings_of("local[*,4]", {}, "later bulk create") == {
        "spark.master": "local[*,4]",
        "spark.app.name": "later bulk create",
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def test_workers_elsewhere_must_find_the_driver() -> None:
    assert not settings_of("spark://h:7077", {}, "x").keys() & {"spark.driver.host", "spark.driver.bindAddress"}


def test_whoever_runs_it_has_the_last_word() -> None:
    chosen = {"spark.driver.host": "10.0.0.1", "spark.ui.enabled": "true", "spark.log.level": "WARN"}

    assert settings_of("local[2]", chosen, "x").items() >= chosen.items()
