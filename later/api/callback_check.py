"""The check of callbacks at the write, by the address guard."""

from __future__ import annotations

from functools import lru_cache

from later.core.address_guard import AddressGuard
from later.core.callback_url import check_callback
from later.core.host_address import parse_host_address
from later.core.origin import Origin
from later.metrics import Metrics


@lru_cache(maxsize=4096)
def has_named_host(callback: str) -> bool:
    """Return True if the host of a callback's URL is a name. Raises Refused if it is no callback."""
    return parse_host_address(Origin.of(check_callback(callback)).host) is None


class CallbackCheck:
    """Refuses callbacks that no worker with the same options would call, and counts them."""

    def __init__(self, guard: AddressGuard, metrics: Metrics) -> None:
        self._guard = guard
        self._metrics = metrics

    def check(self, callback: str) -> None:
        """Check the URL of a new or changed callback, of a task or a policy; "", which is none, needs no check.

        Raises:
            Refused: it is no callback, its host is an address that is refused, or it is not https and has to be.
        """
        if not callback or not self._guard.judges_urls or (has_named_host(callback) and not self._guard.https_only):
            return  # a name is judged when it is called
        try:
            refusal = self._guard.judge_url(Origin.of(check_callback(callback)))
        except OSError:
            return  # it is judged again when it is called
        if refusal is not None:
            self._metrics.callbacks_refused.labels(refusal.why).inc()
            raise refusal.as_refused()
