"""The table of routes of Zaqar's API. What is not in it is answered 404: subscriptions, signed URLs, pools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from later.api.authorization import Authorization, NoScope
from later.api.due_signals import DueSignals
from later.api.durable_writes import DurableWrites
from later.api.load_shedding import PendingWrites
from later.api.routes import Route
from later.api.task_answers import BytesInAnswers
from later.api.zaqar.error_answers import ROOT
from later.api.zaqar.message_claims import MessageClaimHandlers
from later.api.zaqar.messages import MessageHandlers
from later.api.zaqar.protocol import ZaqarHandler, check_calls
from later.api.zaqar.queue_list import QueueListHandler
from later.api.zaqar.queue_stats import QueueStatsHandler
from later.api.zaqar.queues import QueueHandlers
from later.api.zaqar.service_calls import NOT_READY, ServiceHandlers
from later.core.api_keys import Scope
from later.core.errors import LaterError
from later.metrics import Metrics
from later.store.open import Store

QUEUES = f"{ROOT}/queues"
QUEUE = f"{QUEUES}/{{queue:[^/]+}}"
MESSAGES = f"{QUEUE}/messages"
MESSAGE = f"{MESSAGES}/{{message:[^/]+}}"
CLAIMS = f"{QUEUE}/claims"
CLAIM = f"{CLAIMS}/{{claim:[^/]+}}"


def zaqar_routes(
    *,
    store: Store,
    metrics: Metrics,
    authorization: Authorization,
    pending_writes: PendingWrites,
    signals: DueSignals,
    bytes_in_answers: BytesInAnswers,
    durable_writes: DurableWrites,
    max_body: int,
    why_not_ready: Callable[[], Awaitable[LaterError | None]],
) -> list[Route]:
    """Return the routes of Zaqar's API. `max_body` is in bytes."""
    messages = MessageHandlers(
        store=store,
        metrics=metrics,
        authorization=authorization,
        pending_writes=pending_writes,
        signals=signals,
        bytes_in_answers=bytes_in_answers,
        durable_writes=durable_writes,
        max_body=max_body,
    )
    claims = MessageClaimHandlers(
        store=store,
        metrics=metrics,
        authorization=authorization,
        pending_writes=pending_writes,
        signals=signals,
        bytes_in_answers=bytes_in_answers,
    )
    return [
        *_service_routes(ServiceHandlers(store=store, pending_writes=pending_writes, why_not_ready=why_not_ready)),
        *_queue_routes(store),
        *_message_routes(messages),
        *_message_claim_routes(claims),
    ]


def _service_routes(service: ServiceHandlers) -> list[Route]:
    return [
        _route("GET", f"{ROOT}/", service.home, Scope.READ, "The home document could not be read."),
        _route("GET", f"{ROOT}/ping", service.ping, Scope.READ, NOT_READY),
        _route("GET", f"{ROOT}/health", service.health, Scope.READ, "Health status could not be read."),
    ]


def _queue_routes(store: Store) -> list[Route]:
    queues = QueueHandlers(store=store)
    return [
        _route("GET", QUEUES, QueueListHandler(store=store).list_queues, Scope.READ, "Queues could not be listed."),
        _route("PUT", QUEUE, queues.create, Scope.ADMIN, "Queue could not be created."),
        _route("GET", QUEUE, queues.show, Scope.READ, "Queue metadata could not be retrieved."),  # and HEAD
        _route("PATCH", QUEUE, queues.change, Scope.ADMIN, "Queue could not be updated."),
        _route("DELETE", QUEUE, queues.delete, Scope.ADMIN, "Queue could not be deleted."),
        _route("POST", f"{QUEUE}/purge", queues.purge, Scope.EDIT, "Queue could not be purged."),
        _route(
            "GET", f"{QUEUE}/stats", QueueStatsHandler(store=store).show, Scope.READ, "Queue stats could not be read."
        ),
    ]


def _message_routes(messages: MessageHandlers) -> list[Route]:
    """Return the routes of messages. What a caller needs to delete some depends on how it does."""
    return [
        _route("POST", MESSAGES, messages.post_messages, Scope.CREATE, "Messages could not be enqueued."),
        _route(
            "GET", MESSAGES, messages.get_messages, Scope.READ, "Messages could not be listed.",
            ids="Message could not be retrieved.",
        ),
        _route(
            "DELETE", MESSAGES, messages.delete_messages, NoScope.ANY_KEY, "Messages could not be deleted.",
            pop="Messages could not be popped.",
        ),
        _route("GET", MESSAGE, messages.get_message, Scope.READ, "Message could not be retrieved."),
        _route("DELETE", MESSAGE, messages.delete_message, NoScope.ANY_KEY, "Message could not be deleted."),
    ]  # fmt: skip


def _message_claim_routes(claims: MessageClaimHandlers) -> list[Route]:
    return [
        _route("POST", CLAIMS, claims.create, Scope.CLAIM, "Claim could not be created."),
        _route("GET", CLAIM, claims.show, Scope.CLAIM, "Claim could not be queried."),
        _route("PATCH", CLAIM, claims.update, Scope.CLAIM, "Claim could not be updated."),
        _route("DELETE", CLAIM, claims.release, Scope.CLAIM, "Claim could not be deleted."),
    ]


def _route(
    method: str, path: str, handler: ZaqarHandler, scope: Scope | NoScope, failure: str, **failures: str
) -> Route:
    """Return a route; `failure` is the sentence that answers it while the store is away (see `check_calls`).

    The handler of a route without a scope asks for one that depends on its query: `call.caller.require(…)`.
    """
    return Route(method, path, check_calls(handler, failure, **failures), scope, is_zaqar=True)
