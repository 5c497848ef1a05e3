"""The report's run without Spark: the topics' limits, and the tables' columns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from later.bulk.jobs.output import describe_missing_columns
from later.bulk.report.build import find_limits
from later.bulk.report.counts import RejectGroup, reject_group
from later.bulk.report.forecast import TopicLimit
from later.client.http import ApiClient
from tests.api.api_fixture import ApiFixture, serve_api


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    async with serve_api() as built:
        yield built


async def limits_of(api: ApiFixture, *topics: str, rates: dict[str, float] | None = None) -> dict[str, TopicLimit]:
    with closing(ApiClient(str(api.http.make_url("/")).rstrip("/"), 10, time.time)) as client:
        return await asyncio.to_thread(find_limits, topics, rates or {}, client, pytest.fail)


async def test_rates_are_those_of_the_policies_as_applied(api: ApiFixture) -> None:
    await api.request("PATCH", "/namespaces/shop/policy", {"rate": 12.5})
    await api.request("PATCH", "/topics/mail/policy", {"rate": 3, "paused": True})

    await api.request("PATCH", "/topics/jobs/policy", {"rate": 3, "deliver": "pull"})

    limits = await limits_of(api, "shop/order", "mail", "other", "jobs")

    assert limits.pop("jobs") == TopicLimit(0)
    assert limits == {"shop/order": TopicLimit(12.5), "mail": TopicLimit(3, True), "other": TopicLimit(0)}


async def test_a_given_rate_counts_before_the_policy(api: ApiFixture) -> None:
    await api.request("PATCH", "/topics/mail/policy", {"rate": 3})

    assert await limits_of(api, "mail", rates={"mail": 50.0}) == {"mail": TopicLimit(50)}


def test_a_daemon_that_cannot_be_reached_is_one_warning_and_no_error() -> None:
    client = ApiClient("http://127.0.0.1:1", 1, time.time)
    warnings: list[str] = []

    limits = find_limits(["order", "mail", "sms"], {"mail": 5.0}, client, warnings.append)

    assert limits == {"mail": TopicLimit(5)}
    (warning,) = warnings
    assert warning.startswith("not every topic's rate is known: http://127.0.0.1:1 did not answer")


def test_missing_columns_are_named() -> None:
    expected = {"topic": "string", "due_at": "timestamp", "state": "string"}
    naive = expected | {"due_at": "timestamp_ntz"}

    assert describe_missing_columns(expected, expected | {"id": "string"}) == ""
    assert describe_missing_columns(expected, {"topic": "string"}) == "no column due_at, state"
    assert describe_missing_columns(expected, naive) == "due_at is a timestamp_ntz, not a timestamp"


def test_a_reject_group_has_its_reason_without_the_field() -> None:
    group = reject_group("delay", "delay: expected a number", 3, "k")

    assert group == RejectGroup("delay", "expected a number", 3, "k")
    assert reject_group("", "expected JSON", 3, None) == RejectGroup("", "expected JSON", 3, None)
