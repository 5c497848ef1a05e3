"""The doors: which path and method leads to which handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from later.api.batch import MAX_BATCH_BYTES, BatchHandlers
from later.api.edits import EditHandlers
from later.api.explain import ExplainHandlers
from later.api.health import HealthHandlers
from later.api.listing import ListHandlers
from later.api.load_shedding import PendingWrites
from later.api.problems import answer_errors
from later.api.pulsar import PulsarHandlers, parse_persistent_topic
from later.api.server import FAST_ROUTES
from later.api.tasks import TaskHandlers
from later.api.topics import PolicyHandlers, TopicHandlers, parse_namespace_scope, parse_topic_scope
from later.metrics import Metrics
from later.store.open import Store
from later.store.policies import PolicyBook

TOPIC = "/topics/{topic:[^/]+}"
"""aiohttp's own pattern takes no braces; a `/` in a topic's name comes percent-encoded."""
NAMESPACE = "/namespaces/{namespace:[^/]+}"
PULSAR = "/admin/v2"


def build_app(
    *,
    store: Store,
    metrics: Metrics,
    max_body: int,
    remember_ms: int,
    max_pending_writes: int,
    lease_ms: int,
    why_not_ready: Callable[[], Awaitable[str | None]],
    exposition: Callable[[], Awaitable[bytes]],
    on_create: Callable[[int], None],
) -> web.Application:
    """Everything that `later serve` answers.

    `max_body` is in bytes; `backlog` is how many tasks may wait for the store; a job's counts are kept for
    `remember_ms`; `lease_ms` is that of workers, for the daemon's own timeout; `on_create` is told when (ms) the
    earliest of the tasks just created, or moved, must be taken up.
    """
    line = PendingWrites(max_pending_writes)
    metrics.pending_writes.set_function(lambda: line.count)
    tasks = TaskHandlers(store=store, metrics=metrics, max_body=max_body, pending_writes=line, on_create=on_create)
    batches = BatchHandlers(
        store=store,
        metrics=metrics,
        max_body=max_body,
        remember_ms=remember_ms,
        pending_writes=line,
        on_create=on_create,
    )
    edits = EditHandlers(store=store, max_body=max_body, pending_writes=line, on_create=on_create)
    explanations = ExplainHandlers(store=store, max_body=max_body, pending_writes=line, lease_ms=lease_ms)
    health = HealthHandlers(why_not_ready=why_not_ready, exposition=exposition)
    app = _application(
        [
            *_task_routes(tasks),
            *_batch_routes(batches),
            web.post("/list", ListHandlers(store=store, max_body=max_body, pending_writes=line).list_tasks),
            *_edit_routes(edits),
            web.post("/explain", explanations.explain),
            *_topic_routes(TopicHandlers(store)),
            *_policy_routes(store.policies, max_body),
            *_pulsar_routes(store.policies, max_body),
            *_health_routes(health),
        ]
    )
    app[FAST_ROUTES] = {route.path: route.handler for route in _task_routes(tasks)}
    return app


def build_health_app(
    *, why_not_ready: Callable[[], Awaitable[str | None]], exposition: Callable[[], Awaitable[bytes]]
) -> web.Application:
    """What `later worker --health` answers."""
    return _application(_health_routes(HealthHandlers(why_not_ready=why_not_ready, exposition=exposition)))


def _task_routes(calls: TaskHandlers) -> list[web.RouteDef]:
    return [
        web.post("/create", calls.create),
        web.post("/query", calls.query),
        web.post("/delete", calls.delete),
    ]


def _edit_routes(calls: EditHandlers) -> list[web.RouteDef]:
    return [
        web.post("/update", calls.update),
        web.post("/run-now", calls.run_now),
        web.post("/redrive", calls.redrive),
        web.post(f"{TOPIC}/purge", calls.purge),
    ]


def _batch_routes(calls: BatchHandlers) -> list[web.RouteDef]:
    return [
        web.post("/create/batch", calls.create),
        web.post("/query/batch", calls.query),
        web.post("/delete/batch", calls.delete),
        web.get("/jobs/{id}", calls.job),
    ]


def _topic_routes(calls: TopicHandlers) -> list[web.RouteDef]:
    return [
        web.get("/topics", calls.list_topics),
        web.get(TOPIC, calls.show),
    ]


def _policy_routes(policies: PolicyBook, max_body: int) -> list[web.RouteDef]:
    routes: list[web.RouteDef] = []
    for place, asked in ((TOPIC, parse_topic_scope), (NAMESPACE, parse_namespace_scope)):
        calls, path = PolicyHandlers(policies=policies, max_body=max_body, parse_scope=asked), f"{place}/policy"
        routes += [
            web.get(path, calls.show),
            web.put(path, calls.replace),
            web.patch(path, calls.merge),
            web.delete(path, calls.remove),
        ]
    topics = PolicyHandlers(policies=policies, max_body=max_body, parse_scope=parse_topic_scope)
    return [*routes, web.post(f"{TOPIC}/pause", topics.pause), web.post(f"{TOPIC}/resume", topics.resume)]


def _pulsar_routes(policies: PolicyBook, max_body: int) -> list[web.RouteDef]:
    """Of the tenant that is ours; any other is not found."""
    routes: list[web.RouteDef] = []
    for place, asked in (
        ("/namespaces/public/{namespace:[^/]+}", parse_namespace_scope),
        ("/persistent/public/{namespace:[^/]+}/{topic:[^/]+}", parse_persistent_topic),
    ):
        calls, path = (
            PulsarHandlers(policies=policies, max_body=max_body, parse_scope=asked),
            f"{PULSAR}{place}/delayedDelivery",
        )
        routes += [web.get(path, calls.show), web.post(path, calls.change), web.delete(path, calls.remove)]
    return routes


def _health_routes(calls: HealthHandlers) -> list[web.RouteDef]:
    return [
        web.get("/livez", calls.live),
        web.get("/readyz", calls.ready),
        web.get("/metrics", calls.metrics),
    ]


def _application(routes: list[web.RouteDef]) -> web.Application:
    """Bodies are bounded where they are read; aiohttp's own bound stays out of the way."""
    app = web.Application(middlewares=[answer_errors], client_max_size=MAX_BATCH_BYTES)
    app.add_routes(routes)
    return app
