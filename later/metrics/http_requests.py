"""The metrics of HTTP requests, by route."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

OTHER_ROUTE = "other"
"""The route of requests that no route answers: their paths are their callers' own."""
DURATIONS_S = (0.01, 0.1, 1.0)
INITIAL_CODES = (500, 503)
"""Statuses whose series exist from the start: the first one is worth an alarm."""


class RouteMetrics:
    """The requests of one route.

    Plain numbers: the instruments of prometheus_client take locks, at ten times the cost, and a create takes 30 µs.
    """

    __slots__ = ("by_code", "seconds", "slower")

    def __init__(self) -> None:
        self.by_code = defaultdict(int, dict.fromkeys(INITIAL_CODES, 0))
        self.slower = [0] * (len(DURATIONS_S) + 1)
        """The requests in each bucket but the first, which almost all are in."""
        self.seconds = 0.0

    @property
    def by_bucket(self) -> list[int]:
        """The number of requests in each bucket."""
        return [sum(self.by_code.values()) - sum(self.slower), *self.slower[1:]]

    def observe(self, code: int, seconds: float) -> None:
        """Count a request that was answered with this status within this time."""
        self.by_code[code] += 1
        self.seconds += seconds
        if seconds > DURATIONS_S[0]:
            self.slower[bisect_left(DURATIONS_S, seconds)] += 1


class RequestMetrics(Collector):
    """The requests of all routes, by their templates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._routes: dict[str, RouteMetrics] = {}
        registry.register(self)

    def add_routes(self, templates: Sequence[str]) -> dict[str, RouteMetrics]:
        """Show these routes from now on, and one for all other requests; return their metrics."""
        self._routes = {template: RouteMetrics() for template in (*templates, OTHER_ROUTE)}
        return self._routes

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "later_http_requests", "HTTP requests by route and status.", labels=["route", "code"]
        )
        durations = HistogramMetricFamily(
            "later_http_request_duration_seconds",
            "Time from the head of an HTTP request to its answer, by route.",
            labels=["route"],
        )
        bounds = [*map(str, DURATIONS_S), "+Inf"]
        for template, route in self._routes.items():
            for code, count in route.by_code.items():
                requests.add_metric([template, str(code)], count)
            durations.add_metric([template], [*zip(bounds, accumulate(route.by_bucket), strict=True)], route.seconds)
        yield requests
        yield durations
