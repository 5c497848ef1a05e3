"""The doors: which path and method leads to which handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from later.api.batch import MAX_BYTES, BatchCalls
from later.api.edits import EditCalls
from later.api.explain import ExplainCalls
from later.api.health import HealthCalls
from later.api.listing import ListCalls
from later.api.load_shedding import Backlog
from later.api.problems import answer_errors
from later.api.pulsar import PulsarCalls, asked_persistent_topic
from later.api.server import DIRECT
from later.api.tasks import TaskCalls
from later.api.topics import PolicyCalls, TopicCalls, asked_namespace, asked_topic
from later.metrics import Metrics
from later.store.bulk_jobs import Jobs
from later.store.policies import PolicyBook
from later.store.stats import Census
from later.store.tasks import Store

TOPIC = "/topics/{topic:[^/]+}"
"""aiohttp's own pattern takes no braces; a `/` in a topic's name comes percent-encoded."""
NAMESPACE = "/namespaces/{namespace:[^/]+}"
PULSAR = "/admin/v2"


def build_app(
    *,
    store: Store,
    jobs: Jobs,
    census: Census,
    metrics: Metrics,
    policies: PolicyBook,
    max_body: int,
    remember_ms: int,
    backlog: int,
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
    line = Backlog(backlog)
    metrics.waiting.set_function(lambda: line.waiting)
    tasks = TaskCalls(
        store=store, metrics=metrics, policies=policies, max_body=max_body, backlog=line, on_create=on_create
    )
    batches = BatchCalls(
        store=store,
        jobs=jobs,
        metrics=metrics,
        policies=policies,
        max_body=max_body,
        remember_ms=remember_ms,
        backlog=line,
        on_create=on_create,
    )
    edits = EditCalls(store=store, policies=policies, max_body=max_body, backlog=line, on_create=on_create)
    explanations = ExplainCalls(
        store=store, census=census, policies=policies, max_body=max_body, backlog=line, lease_ms=lease_ms
    )
    health = HealthCalls(why_not_ready=why_not_ready, exposition=exposition)
    app = _application(
        [
            *_task_routes(tasks),
            *_batch_routes(batches),
            web.post("/list", ListCalls(store=store, max_body=max_body, backlog=line).page),
            *_edit_routes(edits),
            web.post("/explain", explanations.explain),
            *_topic_routes(TopicCalls(census=census, store=store, policies=policies)),
            *_policy_routes(policies, max_body),
            *_pulsar_routes(policies, max_body),
            *_health_routes(health),
        ]
    )
    app[DIRECT] = {route.path: route.handler for route in _task_routes(tasks)}
    return app


def build_health_app(
    *, why_not_ready: Callable[[], Awaitable[str | None]], exposition: Callable[[], Awaitable[bytes]]
) -> web.Application:
    """What `later worker --health` answers."""
    return _application(_health_routes(HealthCalls(why_not_ready=why_not_ready, exposition=exposition)))


def _task_routes(calls: TaskCalls) -> list[web.RouteDef]:
    return [
        web.post("/create", calls.create),
        web.post("/query", calls.query),
        web.post("/delete", calls.delete),
    ]


def _edit_routes(calls: EditCalls) -> list[web.RouteDef]:
    return [
        web.post("/update", calls.update),
        web.post("/run-now", calls.run_now),
        web.post("/redrive", calls.redrive),
        web.post(f"{TOPIC}/purge", calls.purge),
    ]


def _batch_routes(calls: BatchCalls) -> list[web.RouteDef]:
    return [
        web.post("/create/batch", calls.create),
        web.post("/query/batch", calls.query),
        web.post("/delete/batch", calls.delete),
        web.get("/jobs/{id}", calls.job),
    ]


def _topic_routes(calls: TopicCalls) -> list[web.RouteDef]:
    return [
        web.get("/topics", calls.page),
        web.get(TOPIC, calls.show),
    ]


def _policy_routes(policies: PolicyBook, max_body: int) -> list[web.RouteDef]:
    routes: list[web.RouteDef] = []
    for place, asked in ((TOPIC, asked_topic), (NAMESPACE, asked_namespace)):
        calls, path = PolicyCalls(policies=policies, max_body=max_body, asked=asked), f"{place}/policy"
        routes += [
            web.get(path, calls.show),
            web.put(path, calls.replace),
            web.patch(path, calls.merge),
            web.delete(path, calls.remove),
        ]
    topics = PolicyCalls(policies=policies, max_body=max_body, asked=asked_topic)
    return [*routes, web.post(f"{TOPIC}/pause", topics.pause), web.post(f"{TOPIC}/resume", topics.resume)]


def _pulsar_routes(policies: PolicyBook, max_body: int) -> list[web.RouteDef]:
    """Of the tenant that is ours; any other is not found."""
    routes: list[web.RouteDef] = []
    for place, asked in (
        ("/namespaces/public/{namespace:[^/]+}", asked_namespace),
        ("/persistent/public/{namespace:[^/]+}/{topic:[^/]+}", asked_persistent_topic),
    ):
        calls, path = PulsarCalls(policies=policies, max_body=max_body, asked=asked), f"{PULSAR}{place}/delayedDelivery"
        routes += [web.get(path, calls.show), web.post(path, calls.change), web.delete(path, calls.remove)]
    return routes


def _health_routes(calls: HealthCalls) -> list[web.RouteDef]:
    return [
        web.get("/livez", calls.live),
        web.get("/readyz", calls.ready),
        web.get("/metrics", calls.figures),
    ]


def _application(routes: list[web.RouteDef]) -> web.Application:
    """Bodies are bounded where they are read; aiohttp's own bound stays out of the way."""
    app = web.Application(middlewares=[answer_errors], client_max_size=MAX_BYTES)
    app.add_routes(routes)
    return app
