"""The options of `df.write.format("later")`: texts under names of any case."""

from __future__ import annotations

import pickle

import pytest

from later.bulk.datasource.write_options import WriteOptions, parse_write_options
from later.bulk.input.column_names import TimeRules
from later.bulk.input.row_settings import RowSettings
from later.bulk.transport.target import Target
from later.core.api_keys import make_key_text
from later.core.errors import LaterError
from tests.cases import each_case

REQUIRED = {"url": "http://127.0.0.1:8080", "jobId": "orders-7"}


def options(**given: str) -> WriteOptions:
    return parse_write_options(REQUIRED | given)


def refused(**given: str) -> str:
    with pytest.raises(LaterError) as error:
        options(**given)
    return str(error.value)


def test_two_options_are_enough() -> None:
    assert options() == WriteOptions(
        target=Target(url="http://127.0.0.1:8080", prefix="later", timeout_s=30, batch_size=1000, retries=8),
        row_settings=RowSettings(job="orders-7"),
        fail_fast=True,
        max_rejects=None,
    )


def test_each_option_is_used() -> None:
    given = {"batchSize": "500", "timeout": "1m", "retries": "0", "onError": "Reject", "maxRejects": "7",
             "allowDuplicates": "TRUE", "now": "true", "nullTime": "Now",
             "prefix": "mine", "url": "redis://h/1", "jobId": " j "}  # fmt: skip
    assert options(**given) == WriteOptions(
        target=Target(url="redis://h/1", prefix="mine", timeout_s=60, batch_size=500, retries=0),
        row_settings=RowSettings(job="j", allow_duplicates=True, time_rules=TimeRules(all_now=True, null_now=True)),
        fail_fast=False,
        max_rejects=7,
    )


def test_names_have_any_case_and_sparks_own_options_are_ignored() -> None:
    others = {"path": "x", "checkpointLocation": "y", "queryName": "z"}
    given = {"URL": REQUIRED["url"], "jobid": "orders-7", "BATCHSIZE": "5"}
    assert parse_write_options(given | others).target.batch_size == 5


def test_the_file_of_a_key_is_an_option_and_a_key_is_none() -> None:
    key = make_key_text()
    assert options(keyFile="/run/secrets/later").target.key_file == "/run/secrets/later"
    for given, reason in (({"keyFile": key}, "keyFile: expected the name of a file"), ({"key": key}, "key: unknown")):
        assert refused(**given).startswith(reason)
        assert key not in refused(**given)


def test_a_file_of_authorities_is_an_option_and_travels_to_the_executors() -> None:
    assert options(ca="/etc/later/ca.pem").target.ca == "/etc/later/ca.pem"
    assert options().target.ca is None


def test_options_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(options())) == options()


@each_case(
    ("name", "text", "message"),
    [
        ("batchSize", "0", 'expected an integer from 1 to 10000, got "0"'),
        ("batchSize", "1e3", 'expected an integer from 1 to 10000, got "1e3"'),
        ("retries", "٣", 'expected an integer from 0 to 100, got "٣"'),
        ("timeout", "soon", 'expected a duration from 0.1 to 3600 s, like 15, 500ms, 15s, 10m, 2h or 7d, got "soon"'),
        ("onError", "stop", 'expected fail or reject, got "stop"'),
        ("maxRejects", "1", "expected onError=reject with it; otherwise the first rejected row fails the job"),
        ("maxRejects", "-1", 'expected an integer from 0 to 1000000000000000, got "-1"'),
        ("now", "yes", 'expected true or false, got "yes"'),
        ("nullTime", "soon", 'expected reject or now, got "soon"'),
        ("allowDuplicates", "yes", 'expected true or false, got "yes"'),
        ("jobId", "a b", 'expected 1 to 107 characters of A-Za-z0-9._~:-, got "a b"'),
        ("jobId", "", 'expected 1 to 107 characters of A-Za-z0-9._~:-, got ""'),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(name: str, text: str, message: str) -> None:
    assert refused(**{name: text}) == f"{name}: {message}"


def test_an_unknown_option_is_refused() -> None:
    assert refused(batchsze="5").startswith("batchsze: unknown option; there are url, jobId, batchSize, ")


@each_case("name", REQUIRED)
def test_a_missing_option_is_refused(name: str) -> None:
    with pytest.raises(LaterError, match=f"^{name}: expected "):
        parse_write_options({other: text for other, text in REQUIRED.items() if other != name})


@each_case(
    "url",
    [
        "redis://:hush@h",
        "unix:///s?password=hush",
        "http://me:hush@h",
        "http://h?token=hush",
        "https://me:hush@",
        "hush",
    ],
)
def test_a_refused_url_is_shown_without_its_secrets(url: str) -> None:
    assert refused(url=url).startswith("url ")
    assert "hush" not in refused(url=url) or url == "hush"
