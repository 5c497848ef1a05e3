"""What the commands of `bulk` share: where Spark runs, where the tasks are, and no password on the way."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import click
import pytest

from later.bulk.spark import preflight
from later.bulk.spark.preflight import SparkMissing
from later.cli.bulk.options import LaterAddress, of_store, on_spark, to_later
from later.cli.main import run
from later.core.errors import ConfigError

HTTP = "http://127.0.0.1:8080"


@pytest.fixture(autouse=True)
def a_directory_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def given(decorate: Any, *arguments: str) -> dict[str, Any]:
    """The parameters of a command with these options."""

    def command(**parameters: Any) -> int:
        found.update(parameters)
        return 0

    found: dict[str, Any] = {}
    click.command()(decorate(command)).main(list(arguments), standalone_mode=False)
    return found


def target(decorate: Any, *arguments: str) -> LaterAddress:
    found = given(decorate, *arguments)["target"]
    assert isinstance(found, LaterAddress)
    return found


def test_spark_runs_here_where_nothing_is_said() -> None:
    assert given(on_spark) == {"master": "local[*,4]", "conf": {}}


def test_the_last_setting_of_a_key_counts() -> None:
    settings = ("--conf", "spark.a=1", "--conf", "spark.b=x=y", "--conf", "spark.a=2")

    assert given(on_spark, "--master", "spark://h:7077", *settings) == {
        "master": "spark://h:7077",
        "conf": {"spark.a": "2", "spark.b": "x=y"},
    }


@pytest.mark.parametrize("setting", ["spark.a", "driver.memory=4g", "=4g"])
def test_what_is_no_setting_of_spark_is_refused(setting: str) -> None:
    with pytest.raises(click.BadParameter, match=r"expected spark\.KEY=VALUE"):
        given(on_spark, "--conf", setting)


def test_a_command_runs_only_where_spark_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_missing() -> None:
        raise SparkMissing("pip install")

    monkeypatch.setattr(preflight, "check_packages", is_missing)

    with pytest.raises(SparkMissing):
        given(on_spark)


def test_tasks_go_by_the_api_where_nothing_is_said() -> None:
    assert target(to_later) == LaterAddress(HTTP, "later", 30.0)


def test_the_api_is_found_as_for_every_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "later.toml").write_text('url = "http://file:1"\nwait = "5s"\n', encoding="utf-8")
    assert target(to_later) == LaterAddress("http://file:1", "later", 5.0)

    monkeypatch.setenv("LATER_URL", "http://environment:2")
    assert target(to_later).url == "http://environment:2"
    assert target(to_later, "--url", "https://flag:3/", "--wait", "10") == LaterAddress("https://flag:3", "later", 10.0)


@pytest.mark.parametrize("url", ["redis://h:6380/1", "rediss://me@h", "unix:///run/store.sock"])
@pytest.mark.parametrize("decorate", [to_later, of_store])
def test_a_url_may_name_the_store(decorate: Any, url: str) -> None:
    options = ("--url", url, "--prefix", "mine", "--store-timeout", "3s")

    assert target(decorate, *options) == LaterAddress(url, "mine", 3.0)


@pytest.mark.parametrize("decorate", [to_later, of_store])
@pytest.mark.parametrize("url", ["redis://:hush@h", "redis://h?password=hush"])
def test_a_password_is_not_taken(decorate: Any, url: str) -> None:
    with pytest.raises(ConfigError, match="LATER_REDIS_PASSWORD") as refused:
        target(decorate, "--url", url)

    assert "hush" not in str(refused.value)


def test_the_store_is_found_as_for_every_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert target(of_store) == LaterAddress("redis://127.0.0.1:6379/0", "later", 2.0)
    assert target(of_store, "--data", "d").url == f"unix://{tmp_path}/d/store.sock"

    monkeypatch.setenv("LATER_REDIS", "redis://environment")
    assert target(of_store).url == "redis://environment"
    assert target(of_store, "--redis", "redis://flag").url == "redis://flag"
    assert target(of_store, "--url", "redis://nearer").url == "redis://nearer"


@pytest.mark.parametrize(
    ("url", "bare"),
    [("redis://:h%2Fush@h:1/2", "redis://h:1/2"), ("rediss://me:h%2Fush@h", "rediss://me@h"),
     ("unix://me:h%2Fush@/run/s", "unix://me@/run/s"), ("unix://:h%2Fush@/run/s", "unix:///run/s")],
)  # fmt: skip
def test_the_password_of_the_environments_url_goes_where_sparks_processes_look(
    url: str, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATER_REDIS_PASSWORD", "")  # and so it is as it was, after this
    monkeypatch.setenv("LATER_REDIS", url)

    assert target(of_store).url == bare
    assert os.environ["LATER_REDIS_PASSWORD"] == "h/ush"


def test_a_password_of_its_own_comes_before_that_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATER_REDIS_PASSWORD", "nearer")
    monkeypatch.setenv("LATER_REDIS", "redis://:hush@h")

    assert target(of_store).url == "redis://h"
    assert os.environ["LATER_REDIS_PASSWORD"] == "nearer"


def test_a_password_in_the_query_of_the_environments_url_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATER_REDIS", "redis://h?password=hush")

    with pytest.raises(ConfigError, match="LATER_REDIS_PASSWORD"):
        target(of_store)


def test_a_password_on_the_command_line_is_not_taken() -> None:
    with pytest.raises(ConfigError, match="LATER_REDIS_PASSWORD"):
        target(of_store, "--redis", "redis://:hush@h")


@pytest.mark.parametrize("other", [("--redis", "redis://h"), ("--data", "d")])
def test_one_store_is_enough(other: tuple[str, str]) -> None:
    with pytest.raises(click.UsageError, match="Either --url, --redis or --data"):
        target(of_store, "--url", "redis://h", *other)


def test_the_api_is_no_store() -> None:
    with pytest.raises(ConfigError, match="expected the store's"):
        target(of_store, "--url", HTTP)


def test_help_needs_no_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bulk", "--help"]).code == 0
    assert "pip install 'later[spark]'" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["create", "verify", "cancel"])
def test_without_spark_a_command_says_what_to_install(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert run(["bulk", command, "tasks.parquet", "--job", "import-7"]).code == 1
    assert capsys.readouterr().err == (
        "later: later bulk needs Spark: pip install 'later[spark]' (missing: pyspark, pyarrow, pandas)\n"
    )
