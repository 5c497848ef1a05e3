"""Offers deliveries to the sample of the history."""

from __future__ import annotations

import structlog

from later.core.delivery_sample import DeliverySample, SampledDelivery
from later.core.origin import Origin
from later.core.retry import Outcome
from later.store.types import Claim

log = structlog.get_logger("later.deliveries")


class DeliverySampler:
    """Keeps some of the deliveries of a process, and nothing of what was sent: no content, URL or header."""

    def __init__(self) -> None:
        self.sample = DeliverySample()

    def offer(self, claim: Claim, origin: Origin | None, outcome: Outcome, began_at: int, took_ms: int) -> None:
        """Keep a delivery if it is wanted. It never raises: the call was made, and must not be made again."""
        try:
            if self.sample.wants(outcome, took_ms):
                self.sample.add(_sampled(claim, origin, outcome, began_at, took_ms))
        except Exception as error:
            log.debug("delivery not sampled", id=claim.id, reason=repr(error))


def _sampled(claim: Claim, origin: Origin | None, outcome: Outcome, began_at: int, took_ms: int) -> SampledDelivery:
    return SampledDelivery(
        id=claim.id,
        topic=claim.topic,
        attempt=claim.attempt,
        due_at=claim.due_at,
        began_at=began_at,
        took_ms=took_ms,
        outcome=outcome.kind.value,
        status=outcome.status,
        host="" if origin is None else origin.authority,
        reason=outcome.reason,
    )
