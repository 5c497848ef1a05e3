"""The reports of deliveries that failed by a fault of later's own, or that this machine could not make."""

from __future__ import annotations

import structlog

from later.core.clock import Clock
from later.core.errors import format_traceback
from later.delivery.http_client import LocalFault
from later.metrics import Metrics
from later.store.types import Claim

log = structlog.get_logger("later.deliveries")

FAULT_LOG_MS = 60_000
"""How often the same fault is logged as an error: one that every delivery meets would fill the disk with tracebacks."""


class FaultReports:
    """Counts and logs faults. `clock` is the store's."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._logged_at: dict[str, int] = {}
        """The times (ms) at which the faults of the last `FAULT_LOG_MS` were logged, by their tracebacks or reasons."""

    def report_fault(self, claim: Claim, error: Exception, again: str) -> None:
        """Count and log a fault of later's own. `again` says when the task is tried again.

        Of the same fault, only one in a minute is logged as an error.
        """
        self._metrics.delivery_faults.inc()
        about = {"id": claim.id, "topic": claim.topic, "attempt": claim.attempt, "again": again}
        exception = format_traceback(error)
        if self._is_first_of_its_minute(exception):
            log.error("delivery crashed", **about, exception=exception)
        else:
            log.debug("delivery crashed again", **about)

    def report_local_fault(self, claim: Claim, error: LocalFault) -> None:
        """Count and log a call that this machine could not make. Of the same reason, one in a minute is a warning."""
        self._metrics.delivery_local_faults.inc()
        about = {"id": claim.id, "topic": claim.topic, "reason": str(error)}
        if self._is_first_of_its_minute(str(error)):
            log.warning("delivery not possible", **about)
        else:
            log.debug("delivery still not possible", **about)

    def _is_first_of_its_minute(self, fault: str) -> bool:
        now = self._clock.now().low
        recent = {fault: at for fault, at in self._logged_at.items() if now < at + FAULT_LOG_MS}
        self._logged_at = {fault: now} | recent
        return fault not in recent
