"""The calls that each page of the console makes when it is opened, and how many round trips to the store they may take.

`TOPIC`, `TASK` and `SINCE` stand for a topic, the id of one of its tasks, and a time. While a page is looked at, it
makes some of these calls again.
"""

from __future__ import annotations

from typing import NamedTuple

EVERY_PAGE = "GET /whoami"
"""The first call of each page."""
OUTCOMES = "done,busy,failed,gone,lateness_p50,lateness_p99,held_lateness_p99"
DEATHS = (
    "dead_exhausted,dead_gone,dead_expired,dead_rejected,dead_lost,dead_busy,dead_address,dead_no_callback,dead_body"
)


class PageCalls(NamedTuple):
    """A page: its address, its calls with their bodies, and the round trips that these may take together."""

    path: str
    calls: tuple[str, ...]
    round_trips: int


FORECAST = "GET /forecast?hours=6&step=300"
"""The one call that may take more round trips than its page: it is answered again for a while, whoever asks."""
FORECAST_ROUND_TRIPS = 50
PAGES: dict[str, PageCalls] = {
    "overview": PageCalls(
        "/console/", ("GET /overview?topics=20", FORECAST, f"GET /history?series={OUTCOMES}&since=SINCE&step=10"), 5
    ),
    "topics": PageCalls("/console/topics", ("GET /topics?sort=lateness&limit=200",), 1),
    "topic": PageCalls(
        "/console/topics/TOPIC",
        (
            'POST /explain {"topic":"TOPIC"}',
            "GET /topics/TOPIC/policy?applied=true",
            "GET /topics/TOPIC/forecast?hours=6&step=300",
            "GET /history?topic=TOPIC&series=done,busy,failed,due&step=300&since=SINCE",
        ),
        8,
    ),
    "tasks": PageCalls(
        "/console/tasks?topic=TOPIC&state=delay",
        (
            "GET /topics?sort=delay&limit=200",
            'POST /list {"topic":"TOPIC","state":"delay","limit":100}',
            "GET /topics/TOPIC",
        ),
        6,
    ),
    "task": PageCalls("/console/tasks/TASK", ('POST /query/batch [{"id":"TASK"}]', 'POST /explain {"id":"TASK"}'), 5),
    "all dead": PageCalls(
        "/console/dead", ("GET /topics?sort=dead&limit=200", f"GET /history?series={DEATHS}&since=SINCE&step=300"), 2
    ),
    "dead": PageCalls(
        "/console/dead?topic=TOPIC",
        (
            'POST /list {"topic":"TOPIC","state":"dead","limit":100}',
            "GET /topics/TOPIC",
            'POST /redrive {"topic":"TOPIC","reason":"exhausted","dry_run":true}',
        ),
        4,
    ),
    "workers": PageCalls("/console/workers", ("GET /workers",), 1),
    "jobs": PageCalls("/console/jobs", ("GET /jobs?limit=100",), 1),
    "schedules": PageCalls("/console/schedules", ("GET /schedules?limit=100",), 1),
    "api": PageCalls("/console/api", ("GET /openapi.json",), 0),
}
