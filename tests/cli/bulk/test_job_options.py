"""Options that the commands of `bulk` share: Spark, and the address of the API or the store, without passwords."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import click
import pytest

from later.address_types import Address, SentinelUrl, split_sentinel_url
from later.bulk.spark import preflight
from later.bulk.spark.preflight import SparkMissing
from later.cli.bulk.job_options import (
    LaterAddress,
    SparkOptions,
    address_options,
    secrets_in_environment,
    spark_options,
    store_options,
)
from later.cli.program import run
from later.core.errors import ConfigError
from later.store.url import settings_from_url
from tests.cases import each_case

API_URL = "http://127.0.0.1:8080"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parse(decorate: Any, *arguments: str) -> dict[str, Any]:
    """Return the parameters that a command gets with these options."""

    def command(**parameters: Any) -> int:
        parsed.update(parameters)
        return 0

    parsed: dict[str, Any] = {}
    click.command()(decorate(command)).main(list(arguments), standalone_mode=False)
    return parsed


def parse_address(decorate: Any, *arguments: str) -> LaterAddress:
    address = parse(decorate, *arguments)["address"]
    assert isinstance(address, LaterAddress)
    return address


def test_spark_runs_on_this_machine_by_default() -> None:
    assert parse(spark_options) == {"spark": SparkOptions("local[*,4]", {})}


def test_the_last_setting_of_a_key_counts() -> None:
    settings = ("--conf", "spark.a=1", "--conf", "spark.b=x=y", "--conf", "spark.a=2")

    assert parse(spark_options, "--master", "spark://h:7077", *settings) == {
        "spark": SparkOptions("spark://h:7077", {"spark.a": "2", "spark.b": "x=y"})
    }


@each_case("setting", ["spark.a", "driver.memory=4g", "=4g"])
def test_a_setting_without_sparks_prefix_is_refused(setting: str) -> None:
    with pytest.raises(click.BadParameter, match=r"expected spark\.KEY=VALUE"):
        parse(spark_options, "--conf", setting)


def test_a_command_needs_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing() -> None:
        raise SparkMissing("pip install")

    monkeypatch.setattr(preflight, "check_packages", raise_missing)

    with pytest.raises(SparkMissing):
        parse(spark_options)


def test_the_address_is_the_apis_by_default() -> None:
    assert parse_address(address_options) == LaterAddress(API_URL, "later", 30.0)


def test_the_api_is_found_as_by_every_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "later.toml").write_text('url = "http://file:1"\nwait = "5s"\n', encoding="utf-8")
    assert parse_address(address_options) == LaterAddress("http://file:1", "later", 5.0)

    monkeypatch.setenv("LATER_URL", "http://environment:2")
    assert parse_address(address_options).url == "http://environment:2"
    assert parse_address(address_options, "--url", "https://flag:3/", "--wait", "10") == LaterAddress(
        "https://flag:3", "later", 10.0
    )


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ((), LaterAddress(API_URL, "later", 30.0)),
        (("--url", "redis://h"), LaterAddress("redis://h", "later", 2.0)),
    ],
)
def test_the_environment_of_a_daemon_does_not_concern_a_job(
    options: tuple[str, ...], address: LaterAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"REDIS": "redis://a", "DATA": "d", "TICK": "banana", "SHARDS": "0"}.items():
        monkeypatch.setenv(f"LATER_{name}", text)
    assert parse_address(address_options, *options) == address


@each_case("url", ["redis://h:6380/1", "rediss://me@h", "unix:///run/store.sock"])
@each_case("decorate", [address_options, store_options])
def test_a_url_may_be_the_stores(decorate: Any, url: str) -> None:
    options = ("--url", url, "--prefix", "mine", "--store-timeout", "3s")

    assert parse_address(decorate, *options) == LaterAddress(url, "mine", 3.0)


@each_case("decorate", [address_options, store_options])
@each_case("url", ["redis://:secret@h", "redis://h?password=secret"])
def test_a_password_in_a_url_is_refused(decorate: Any, url: str) -> None:
    with pytest.raises(ConfigError, match="LATER_REDIS_PASSWORD") as refused:
        parse_address(decorate, "--url", url)

    assert "secret" not in str(refused.value)


def test_the_store_is_found_as_by_every_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parse_address(store_options) == LaterAddress("redis://127.0.0.1:6379/0", "later", 2.0)
    assert parse_address(store_options, "--data", "d").url == f"unix://{tmp_path}/d/store.sock"

    monkeypatch.setenv("LATER_REDIS", "redis://environment")
    assert parse_address(store_options).url == "redis://environment"
    assert parse_address(store_options, "--redis", "redis://flag").url == "redis://flag"
    assert parse_address(store_options, "--url", "redis://nearer").url == "redis://nearer"


@pytest.mark.parametrize(
    ("url", "without_password"),
    [("redis://:h%2Fush@h:1/2", "redis://h:1/2"), ("rediss://me:h%2Fush@h", "rediss://me@h"),
     ("unix://me:h%2Fush@/run/s", "unix://me@/run/s"), ("unix://:h%2Fush@/run/s", "unix:///run/s")],
)  # fmt: skip
def test_the_password_of_the_environments_url_is_passed_to_sparks_processes(
    url: str, without_password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATER_REDIS", url)

    address = parse_address(store_options)

    assert (address.url, address.secrets) == (without_password, {"LATER_REDIS_PASSWORD": "h/ush"})
    with secrets_in_environment(address):
        assert os.environ["LATER_REDIS_PASSWORD"] == "h/ush"
    assert "LATER_REDIS_PASSWORD" not in os.environ


def test_the_password_of_the_sentinels_is_passed_to_sparks_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "LATER_REDIS", "redis+sentinel://me:a%2Fb@s1:1,s2:2/orders/3?sentinel_user=w&sentinel_password=c%2Fd"
    )

    address = parse_address(store_options)

    assert address.url == "redis+sentinel://me@s1:1,s2:2/orders/3?sentinel_user=w"
    with secrets_in_environment(address):
        settings = settings_from_url(address.url, "later", 1.0, os.environ)
    assert split_sentinel_url(settings.url) == SentinelUrl(
        (Address("s1", 1), Address("s2", 2)), "orders", "redis://me:a%2Fb@primary/3", "w", "c/d"
    )
    assert "LATER_REDIS_SENTINEL_PASSWORD" not in os.environ


def test_a_password_in_the_environment_comes_before_that_of_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATER_REDIS_PASSWORD", "nearer")
    monkeypatch.setenv("LATER_REDIS", "redis://:secret@h")

    address = parse_address(store_options)

    assert address.url == "redis://h"
    with secrets_in_environment(address):
        assert os.environ["LATER_REDIS_PASSWORD"] == "nearer"
    assert os.environ["LATER_REDIS_PASSWORD"] == "nearer"


def test_a_password_in_the_query_of_the_environments_url_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATER_REDIS", "redis://h?password=secret")

    with pytest.raises(ConfigError, match="LATER_REDIS_PASSWORD"):
        parse_address(store_options)


def test_a_password_on_the_command_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="LATER_REDIS_PASSWORD"):
        parse_address(store_options, "--redis", "redis://:secret@h")


@each_case("other", [("--redis", "redis://h"), ("--data", "d")])
def test_two_addresses_of_a_store_are_refused(other: tuple[str, str]) -> None:
    with pytest.raises(click.UsageError, match="Give only one of --url, --redis and --data"):
        parse_address(store_options, "--url", "redis://h", *other)


def test_the_url_of_the_api_is_refused_as_a_stores() -> None:
    with pytest.raises(ConfigError, match="expected the store's"):
        parse_address(store_options, "--url", API_URL)


def test_help_works_without_spark(capsys: pytest.CaptureFixture[str]) -> None:
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
