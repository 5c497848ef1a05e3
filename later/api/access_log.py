"""The access log: an event for each HTTP request, or only for those that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from aiohttp import hdrs, web

from later.api.authorization import CALLER
from later.api.trace_headers import context_of

ERRORS_FROM = 400
"""The least status that is an error."""
ANSWERED = frozenset({404, 409})
"""Statuses by which the API answers, in the course of its work, what became of a task. They are no errors here."""
LOG_EVERY_S = 1.0
"""Errors of one status are logged once in this time at most: callers must not fill the log."""
OTHER_METHOD = "other"

AddEvent = Callable[[int, str, Mapping[str, object]], None]
"""Logs an event: its level (as in `logging`), its name and its fields."""


class AccessLog:
    """The events of requests: of all, or of errors, and then not of the calls for monitoring.

    Nothing of a request is logged that its caller is free to choose: no path, query, header or body. `monotonic`
    returns seconds.
    """

    def __init__(self, *, logs_all: bool, monotonic: Callable[[], float], add_event: AddEvent) -> None:
        self._logs_all = logs_all
        self._monotonic = monotonic
        self._add_event = add_event
        self._logged_at: dict[int, float] = {}
        """When (s) an error of each status was logged last."""
        self._not_logged: dict[int, int] = {}
        self.least_status = 0 if logs_all else ERRORS_FROM
        """Answers of a lower status need not be noted."""

    def note(
        self, request: web.BaseRequest, answer: web.StreamResponse, route: str, seconds: float, *, is_health: bool
    ) -> None:
        """Log an answer. `route` is the template of the route that gave it, `seconds` the time that it took.

        `is_health`: it is a call for monitoring, which fails again and again while the store is away.
        """
        status = answer.status
        if self._logs_all:
            self._log(request, answer, route, seconds)
        elif status >= ERRORS_FROM and status not in ANSWERED and not is_health and self._may_log(status):
            self._log(request, answer, route, seconds, not_logged=self._not_logged.pop(status, 0))

    def _may_log(self, status: int) -> bool:
        now_s = self._monotonic()
        if now_s - self._logged_at.get(status, -LOG_EVERY_S) < LOG_EVERY_S:
            self._not_logged[status] = self._not_logged.get(status, 0) + 1
            return False
        self._logged_at[status] = now_s
        return True

    def _log(
        self, request: web.BaseRequest, answer: web.StreamResponse, route: str, seconds: float, **more: object
    ) -> None:
        fields: dict[str, object] = {
            "method": request.method if request.method in hdrs.METH_ALL else OTHER_METHOD,
            "route": route,
            "status": answer.status,
            "ms": round(seconds * 1000, 3),
            "peer": request.remote,
            **more,
        }
        body = getattr(answer, "body", None)
        if isinstance(body, bytes | bytearray):
            fields["bytes"] = len(body)
        caller = request.get(CALLER)
        if caller is not None and caller.key_id is not None:
            fields["key"] = caller.key_id
        context = context_of(request)
        if context:
            fields["trace_id"] = context[:16].hex()
        self._add_event(logging.WARNING if answer.status >= 500 else logging.INFO, "request", fields)


ACCESS_LOG = web.AppKey("access_log", AccessLog)
"""The key under which an application keeps its access log, if it has one."""
