"""The steps of a report: count in Spark, ask the API for the topics' rates, and combine both."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from later.bulk.report.counts import ExportCounts, RejectCounts, Report, read_export, read_rejects
from later.bulk.report.forecast import ReportWindow, TopicLimit, forecast_topics, window_from_days
from later.bulk.spark.session import open_session
from later.client.http import ApiClient
from later.core.errors import CallFailed
from later.core.policy import Deliver

MAX_GROUPS = 20
"""The number of topics, groups of dead tasks and groups of rejects that are listed; the others are summed up."""


class ReportRequest(NamedTuple):
    """The directories that a report reads, and the topics of the export to count (empty: all)."""

    export: str | None
    rejects: str | None
    topics: tuple[str, ...]
    days: int


class ReportCounts(NamedTuple):
    """Spark's counts; None for a table that the request does not name."""

    window: ReportWindow
    exported: ExportCounts | None
    rejected: RejectCounts | None


def count_tables(
    request: ReportRequest, always_listed: Collection[str], master: str, conf: Mapping[str, str]
) -> ReportCounts:
    """Count the tables in a Spark session on `master`. The `always_listed` topics are listed however few tasks are due.

    Raises:
        LaterError: A table is missing, or is not of the kind that is expected there.
    """
    window = window_from_days(int(time.time() * 1000), request.days)
    exported = rejected = None
    with open_session(master, conf, "later bulk report") as spark:
        if request.export is not None:
            exported = read_export(spark, request.export, request.topics, window, MAX_GROUPS, always_listed)
        if request.rejects is not None:
            rejected = read_rejects(spark, request.rejects, MAX_GROUPS)
    return ReportCounts(window, exported, rejected)


def build_report(
    counts: ReportCounts, rates: Mapping[str, float], client: ApiClient | None, warn: Callable[[str], None]
) -> Report:
    """Combine the counts with the topics' limits. `warn` takes one line for people."""
    if counts.exported is None:
        return Report(counts.window, None, None, None, counts.rejected)
    due = counts.exported.due
    limits = find_limits([load.topic for load in due.topics], rates, client, warn)
    return Report(
        counts.window, counts.exported.states, forecast_topics(due, limits), counts.exported.dead, counts.rejected
    )


def find_limits(
    topics: Sequence[str], rates: Mapping[str, float], client: ApiClient | None, warn: Callable[[str], None]
) -> dict[str, TopicLimit]:
    """Return the topics' limits: the given rate, otherwise that of the effective policy.

    Without a client, or after its first failed call, the other topics are left out.
    """
    limits = {topic: TopicLimit(rate) for topic, rate in rates.items()}
    if client is None:
        return limits
    try:
        for topic in topics:
            if topic not in limits:
                path = f"/topics/{quote(topic, safe='', errors='surrogateescape')}/policy?applied=true"
                policy = client.ask("GET", path)
                is_pulled = policy.get("deliver", {}).get("value") == Deliver.PULL  # no rate limits its consumers
                rate = 0.0 if is_pulled else float(policy["rate"]["value"])
                limits[topic] = TopicLimit(rate, bool(policy["paused"]["value"]))
    except (KeyError, TypeError, ValueError):
        warn("not every topic's rate is known: the answer has no rate: is the server at --url later?")
    except CallFailed as error:
        warn(f"not every topic's rate is known: {error}")
    return limits
