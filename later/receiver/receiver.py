"""The receiver of an application: verifies a call, dispatches it to its handler, and answers. It knows no framework."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any
from urllib.parse import quote

from later.core.errors import Refused
from later.handlers.dispatch import HandlerDispatcher
from later.handlers.registry import Handlers
from later.receiver.callback import Answer, format_outcome, read_call
from later.receiver.signed import NotVerified, Signed

log = logging.getLogger("later.receiver")

CANCEL_BEFORE_S = 0.5
"""How long before the end of a call its handler is cancelled, so that it does not overlap with the next attempt."""
SLOT_WAIT_SHARE = 0.5
"""The share of a call's time in which it waits for a slot of its handler: the rest is the handler's."""


class Receiver:
    """The receiver of the calls for an application's handlers. With `signed` they must be signed.

    `state` returns what the application's lifespan has made; `leave_loop` closes the connections of an event loop.
    """

    def __init__(
        self,
        handlers: Handlers,
        dispatcher: HandlerDispatcher,
        signed: Signed | None,
        state: Callable[[], Any],
        leave_loop: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._handlers = handlers
        self._dispatcher = dispatcher
        self._signed = signed
        self._state = state
        self._leave_loop = leave_loop
        if signed is None:
            log.warning("calls are not verified: anybody who reaches this application can run its handlers; see Signed")

    async def answer(
        self, method: str, headers: Mapping[str, str], body: bytes | None, *, executor: Executor | None = None
    ) -> Answer:
        """Answer a call. The names of headers are in lower case; without a body, it is too large.

        `executor` runs the functions that are not async, in the place of the dispatcher's threads.
        """
        received_at = time.monotonic()
        if method != "POST":
            return Answer(405, {"allow": "POST"})
        if body is None:
            return Answer(413, {"later-reason": "the body is too large"})
        try:
            if self._signed is not None:
                self._signed.verify(headers, body, time.time())
            if headers.get("later-verify") == "1":
                return Answer(204, {"later-topics": ",".join(map(quote, self._handlers.topics))})
            task, content = read_call(headers, body, received_at, self._state())
        except NotVerified as error:
            log.warning("a call was refused: %s (task %.200r)", error, headers.get("webhook-id", ""))
            return Answer(401, {"later-reason": "the signature is not valid"})
        except Refused as error:
            log.warning("a call was refused: %s", error)
            return Answer(400, {"later-reason": "the body is no call of later"})
        outcome = await self._dispatcher.dispatch(
            task,
            content,
            slot_wait_s=task.time_left() * SLOT_WAIT_SHARE,
            cancel_before_s=CANCEL_BEFORE_S,
            executor=executor,
        )
        return format_outcome(outcome)

    async def answer_once(
        self, method: str, headers: Mapping[str, str], body: bytes | None, executor: Executor
    ) -> Answer:
        """Answer a call in an event loop that ends with it, as `answer` does."""
        try:
            return await self.answer(method, headers, body, executor=executor)
        finally:
            if self._leave_loop is not None:
                await self._leave_loop()
