"""`GET` and `POST /dev/clock`: the clock of `later dev`. An ordinary daemon has no such route."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from later.api.authorization import Authorization
from later.api.claim_queues import ClaimQueues
from later.api.json_response import json_response
from later.api.requests import EXPECTED, read_body
from later.core.clock import rfc3339
from later.core.clock_move import ClockMove, ClockState
from later.core.errors import Refused
from later.core.json_body import body_parser
from later.core.validation import parse_time, refusal
from later.store.open import Store

DEFAULT_SETTLE_S = 20.0
MAX_SETTLE_S = 3600
_MAX_BODY = 4096

MoveClock = Callable[[ClockMove], Awaitable[ClockState]]


class ClockMoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a move, as it came."""

    advance: float | None = None
    to: float | str | None = None
    settle: bool | float | None = None
    step: bool | None = None


_EXPECTED_ADVANCE = "a number of seconds ≥ 0"
_EXPECTED_SETTLE = f"true, false or a number of seconds from 0 to {MAX_SETTLE_S}"
EXPECTED_OF_CLOCK = {
    "advance": _EXPECTED_ADVANCE,
    "to": EXPECTED["due_after"],
    "settle": _EXPECTED_SETTLE,
    "step": "true or false",
}
_parse_request = body_parser(ClockMoveRequest, EXPECTED_OF_CLOCK)


class ClockHandlers:
    """Handlers of the clock. After a `move`, claims that wait look again, and the rates of keys begin anew."""

    def __init__(self, *, store: Store, move: MoveClock, queues: ClaimQueues, authorization: Authorization) -> None:
        self._store = store
        self._move = move
        self._queues = queues
        self._authorization = authorization

    async def show(self, request: web.Request) -> web.StreamResponse:
        """`GET /dev/clock`: the time, and by how many seconds it is ahead of that of the machine."""
        return json_response(self._view((await self._store.time.now()).low))

    async def move(self, request: web.Request) -> web.StreamResponse:
        """`POST /dev/clock`: move the clock forward; the answer comes when all parts of the daemon go by it."""
        move = parse_move(await read_body(request, _MAX_BODY))
        try:
            state = await self._move(move)
        finally:
            self._authorization.renew_rates()
            await self._queues.look()
        view = self._view(state.now)
        if state.is_settled is not None:
            view |= {"settled": state.is_settled}
        if state.is_settled is False:
            view |= {"to": rfc3339(state.target_ms)}
        return json_response(view)

    def _view(self, now: int) -> dict[str, Any]:
        return {"now": rfc3339(now), "ahead": self._store.clock.moved_ms / 1000}


def parse_move(body: bytes) -> ClockMove:
    """Return the move that a body asks for. Raises Refused."""
    request = _parse_request(body)
    if (request.advance is None) == (request.to is None):
        raise Refused("expected either advance or to", "advance" if request.to is None else "to")
    by_ms = None
    if request.advance is not None:
        if not 0 <= request.advance < math.inf:
            raise refusal("advance", request.advance, _EXPECTED_ADVANCE)
        by_ms = math.ceil(min(request.advance * 1000, 1e15))
    settle = True if request.step and request.settle is None else request.settle
    if settle is False and request.step:
        raise Refused("settle: a move with step waits at each stop: expected true or a number of seconds", "settle")
    return ClockMove(
        by_ms=by_ms,
        to_ms=None if request.to is None else parse_time("to", request.to),
        settle_ms=_parse_settle_ms(settle),
        is_stepwise=bool(request.step),
    )


def _parse_settle_ms(settle: bool | float | None) -> int | None:
    """Return how long (ms) a move waits at most for what is due; None: not at all."""
    if settle is None or settle is False:
        return None
    if settle is True:
        return int(DEFAULT_SETTLE_S * 1000)
    if not 0 <= settle <= MAX_SETTLE_S:
        raise refusal("settle", settle, _EXPECTED_SETTLE)
    return math.ceil(settle * 1000)
