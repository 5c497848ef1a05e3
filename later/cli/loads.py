"""`bulk report`: what it counts, whom it asks for the topics' rates, and what it tells."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from later.bulk.report.counts import ExportCounts, RejectCounts, Report, read_export, read_rejects
from later.bulk.report.forecast import ReportWindow, TopicLimit, forecast_topics, next_days
from later.bulk.spark.session import open_session
from later.cli.bulk.report_view import print_json, print_text
from later.cli.console import say
from later.cli.tables import seconds
from later.client.http import CallFailed, Client
from later.core.errors import LaterError

MOST = 20
"""Topics, groups of the dead and of the rejects that are told apart; the others are summed."""
OLD_MS = 3_600_000
"""An export shows one moment; where that was so long ago it is said."""


class Wanted(NamedTuple):
    """What a report is to be about: directories, and which topics of the export (none: all)."""

    export: str | None
    rejects: str | None
    topics: tuple[str, ...]
    days: int


class Found(NamedTuple):
    """What Spark counted."""

    window: ReportWindow
    exported: ExportCounts | None
    rejected: RejectCounts | None


def check_can_draw() -> None:
    """Raises LaterError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LaterError("--plot needs matplotlib: pip install 'later[spark]'")


def count(wanted: Wanted, rates: Mapping[str, float], master: str, conf: Mapping[str, str]) -> Found:
    """Count in a Spark session on `master`; topics with a rate are told apart, whatever falls due of them.

    Raises:
        LaterError: one of the tables is not there, or none of that kind.
    """
    window = next_days(int(time.time() * 1000), wanted.days)
    exported = rejected = None
    with open_session(master, conf, "later bulk report") as spark:
        if wanted.export is not None:
            exported = read_export(spark, wanted.export, wanted.topics, window, MOST, rates)
        if wanted.rejects is not None:
            rejected = read_rejects(spark, wanted.rejects, MOST)
    return Found(window, exported, rejected)


def tell(found: Found, rates: Mapping[str, float], client: Client | None, plot: Path | None, *, as_json: bool) -> int:
    """Print, and draw if `plot` says where."""
    report = with_rates(found, rates, client)
    (print_json if as_json else print_text)(report)
    if plot is not None:
        from later.bulk.report.plot import draw  # noqa: PLC0415  # heavy, and no report needs it

        draw(report, plot)
    if found.exported is not None:
        _tell_absent(found.exported.absent)
        _tell_age(found.exported, found.window.now)
    return 0


def with_rates(found: Found, rates: Mapping[str, float], client: Client | None) -> Report:
    """What was counted beside what the topics are allowed."""
    if found.exported is None:
        return Report(found.window, None, None, None, found.rejected)
    due = found.exported.due
    allowed = allowed_of([load.topic for load in due.topics], rates, client)
    return Report(
        found.window, found.exported.states, forecast_topics(due, allowed), found.exported.dead, found.rejected
    )


def allowed_of(topics: Sequence[str], rates: Mapping[str, float], client: Client | None) -> dict[str, TopicLimit]:
    """What topics are allowed: by the rate that is given, else by the policy as applied; without what nobody tells."""
    allowed = {topic: TopicLimit(rate) for topic, rate in rates.items()}
    if client is None:
        return allowed
    try:
        for topic in topics:
            if topic not in allowed:
                allowed[topic] = _by_policy(topic, client)
    except CallFailed as error:
        say(f"not every topic's rate is known: {error}")
    return allowed


def _by_policy(topic: str, client: Client) -> TopicLimit:
    applied = client.ask("GET", f"/topics/{quote(topic, safe='', errors='surrogateescape')}/policy?applied=true")
    try:
        return TopicLimit(float(applied["rate"]["value"]), bool(applied["paused"]["value"]))
    except (KeyError, TypeError, ValueError):
        raise CallFailed("the answer tells no rate: is it later that answers there?", 200) from None


def _tell_absent(topics: Sequence[str]) -> None:
    """Or a slip in --rate would leave the topic that was meant without one."""
    if topics:
        say(f"--topic and --rate name topics of which the export has no task: {', '.join(topics)}")


def _tell_age(exported: ExportCounts, now: int) -> None:
    if exported.written_at is not None and now - exported.written_at >= OLD_MS:
        age = seconds(now - exported.written_at)
        say(f"the export is {age} old: what has fallen due since may have been delivered, and counts as overdue here")
