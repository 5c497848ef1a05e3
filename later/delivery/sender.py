"""The sender of callbacks: one POST, one Outcome.

A failed delivery is not an error: whatever a receiver or the network does becomes an Outcome. An exception that `send`
raises is a fault of later's own, and must not be held against the receiver.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from later.core.address_guard import AddressGuard
from later.core.errors import MissingMaster
from later.core.origin import Origin
from later.core.policy import Ack, Policy
from later.core.reply import Reply, parse_reply
from later.core.retry import Outcome, OutcomeKind
from later.core.signing import format_signatures
from later.core.task import Task
from later.delivery.http_client import (
    AddressRefused,
    BrokenReply,
    HttpClient,
    LocalFault,
    NoConnection,
    ProxyFailed,
)
from later.delivery.proxy import check_answer
from later.delivery.refusals import RefusalReport
from later.delivery.request import CallbackRequest, RequestBuilder, encode_body
from later.delivery.signer import MAX_INLINE_BYTES, Signer, sign_in_thread

BAD_URL = "this URL cannot be called"


class Sender:
    """Sends tasks to their receivers, any number at a time. With `has_proxy`, a proxy may answer in their stead."""

    def __init__(
        self,
        client: HttpClient,
        signer: Signer,
        *,
        user_agent: str,
        guard: AddressGuard,
        refusals: RefusalReport,
        has_proxy: bool = False,
        moved_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`moved_ms` returns how far the store's time is ahead of the machine's, which is that of receivers."""
        self._client = client
        self._signer = signer
        self._guard = guard
        self._refusals = refusals
        self._post = self._post_through_proxy if has_proxy else client.post
        self._requests = RequestBuilder(user_agent)
        self._moved_ms = moved_ms

    async def start(self) -> None:
        """Start the client in the running event loop."""
        await self._client.start()

    async def close(self) -> None:
        """Close the client: calls in flight raise `LocalFault`."""
        await self._client.close()

    async def send(self, task: Task, attempt: int, failures: int, now: int, policy: Policy) -> Outcome:
        """Call the task's callback once, after `failures` failures; `now` is the store's time in ms.

        The policy's `timeout_ms` is the one deadline: name lookup, connect, TLS, the request and the whole reply.
        If it is cancelled when the receiver's status has already decided the outcome, it returns that.

        Raises:
            LocalFault: this machine or process could not make the call, or not sign it.
        """
        timeout_s = policy.timeout_ms / 1000
        try:
            body = encode_body(task)
            contexts = self._signer.contexts(task, policy.sign, now)
            now -= self._moved_ms()
            if contexts and len(body) > MAX_INLINE_BYTES:
                signature = await sign_in_thread(contexts, task.id, now // 1000, body)
            else:
                signature = format_signatures(contexts, task.id, now // 1000, body) if contexts else ""
            request = self._requests.build(task, attempt, failures, now, policy.timeout_ms, body, signature)
        except MissingMaster as error:
            raise LocalFault(str(error)) from None
        except ValueError:  # a URL that an older version admitted
            return _failed("connect", f"no connection: {BAD_URL}")
        try:
            if self._guard.judges_calls:
                self._check_url(request.origin)
            reply = await self._post(request, timeout_s, policy.ack)
        except TimeoutError:
            return _failed("timeout", f"no complete answer within {timeout_s:g} s")
        except AddressRefused as error:
            self._refusals.add(request.origin.host, error.refusal, now)
            return _failed("address", error.refusal.message)
        except (NoConnection, BrokenReply, ProxyFailed) as error:
            return _explain_failure(error)
        return parse_reply(reply, now, policy.ack)

    async def _post_through_proxy(self, request: CallbackRequest, timeout_s: float, ack: Ack) -> Reply:
        """Return the receiver's reply. Raises what `HttpClient.post` does."""
        if request.origin.scheme != "http":
            return await self._client.post(request, timeout_s, ack)
        try:
            reply = await self._client.post(request, timeout_s, ack)
        except BrokenReply as error:  # it is the proxy that sends it: of a broken one it would have to make a 502
            raise ProxyFailed(f"no complete answer: {error}") from error
        check_answer(reply)
        return reply

    def _check_url(self, origin: Origin) -> None:
        """Check what can be said about a URL before it is called. Raises AddressRefused, LocalFault."""
        try:
            refusal = self._guard.judge_url(origin)
        except OSError as error:
            raise LocalFault(os.strerror(error.errno or 0)) from error
        if refusal is not None:
            raise AddressRefused(refusal)


def _explain_failure(error: NoConnection | BrokenReply | ProxyFailed) -> Outcome:
    match error:
        case NoConnection():
            return _failed("connect", f"no connection: {error}")
        case BrokenReply():
            return _failed("reply", f"no complete answer: {error}")
        case ProxyFailed():
            return _failed("proxy", f"the proxy failed: {error}")


def _failed(reason: str, message: str) -> Outcome:
    return Outcome(kind=OutcomeKind.FAILED, reason=reason, message=message)
