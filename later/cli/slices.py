"""What is done to many tasks, a slice of them at a time, and again where an answer was lost.

What a slice has done is not there any more to be done again: so a call that may not have got through is made once more,
and whoever is interrupted begins anew with what is left. Only who dies again could be brought back again; a call that
names the moment that all began keeps from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from later.client.http import CallFailed, Client, pause_before_again

SLICE = 5000
"""How many tasks a call is to be about: an answer comes soon, and nobody else waits for long."""
LONGEST_S = 86_400.0
"""Of a pause between two slices."""
PACE_S = 10.0
"""With a rate, how much of it: so long is it at most until whoever stops it has stopped it."""


class Errand(NamedTuple):
    """A call that does something to the first `limit` tasks that it finds, and what its answer calls how many it did.

    `rate` (a second) is in the call's fields, too: so many of a slice are due a second.
    """

    path: str
    fields: Mapping[str, Any]
    done: str
    rate: float | None = None


class Audience(Protocol):
    """Who is told how it goes."""

    def advance(self, by: int) -> None: ...

    def print_retry(self, reason: str, pause_s: float) -> None: ...


class Slices:
    """Carries out an errand. `done` counts its tasks; where it is not `exact`, calls without an answer did more."""

    def __init__(
        self,
        client: Client,
        audience: Audience,
        *,
        retries: int,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.done = 0
        self.exact = True
        self._client = client
        self._audience = audience
        self._retries = retries
        self._sleep = sleep
        self._clock = clock

    def carry_out(self, errand: Errand) -> None:
        """Slice after slice, until nothing is left; with a rate, each when the one before it is over.

        Raises:
            CallFailed: a slice did not get through, also not again. What is left of the tasks is as it was.
        """
        limit = _limit(errand.rate)
        while True:
            begun = self._clock()
            done, more = self._slice(errand, limit)
            self.done += done
            self._audience.advance(done)
            if not more:
                return
            if errand.rate is not None:
                self._sleep(max(begun + min(done / errand.rate, LONGEST_S) - self._clock(), 0.0))

    def _slice(self, errand: Errand, limit: int) -> tuple[int, bool]:
        """How many it was done to, and whether there are more."""
        for attempt in range(self._retries + 1):
            known, self.exact = self.exact, False  # until there is an answer
            try:
                answer = self._client.ask("POST", errand.path, {**errand.fields, "limit": limit})
            except CallFailed as error:
                self.exact = known and not error.may_pass
                if attempt == self._retries or not error.may_pass:
                    raise
                self._wait(errand, error, attempt, limit)
            else:
                self.exact = known
                done = int(answer[errand.done])
                return done, done > 0 and answer.get("more") is True
        raise AssertionError  # the last attempt returns or raises

    def _wait(self, errand: Errand, error: CallFailed, attempt: int, limit: int) -> None:
        """With a rate, at least for as long as a slice takes: it may be under way."""
        pause_s = pause_before_again(attempt, error.again_ms)
        if errand.rate is not None:
            pause_s = max(pause_s, min(limit / errand.rate, LONGEST_S))
        self._audience.print_retry(str(error), pause_s)
        self._sleep(pause_s)


def _limit(rate: float | None) -> int:
    return SLICE if rate is None else min(max(math.floor(rate * PACE_S), 1), SLICE)
