"""The application, built from one table of routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from later.api.about import AboutHandlers, WhoAmIHandler
from later.api.authorization import Authorization, NoScope
from later.api.batch import MAX_BATCH_BYTES, BatchHandlers
from later.api.callback_check import CallbackCheck
from later.api.claims import ClaimHandlers
from later.api.clock_moves import ClockHandlers, MoveClock
from later.api.cross_site import CrossSiteProtection
from later.api.description.description_handler import DescriptionHandler
from later.api.due_signals import DueSignals
from later.api.durable_writes import DurableWrites
from later.api.edits import EditHandlers
from later.api.explain import ExplainHandlers
from later.api.forecast import ForecastHandlers
from later.api.health import HealthHandlers, HealthSource
from later.api.history import HistoryHandlers
from later.api.jobs import JobHandlers
from later.api.listing import ListHandlers
from later.api.load_shedding import PendingWrites
from later.api.overview import OverviewHandler
from later.api.policies import PolicyHandlers, parse_namespace_policy
from later.api.problems import ErrorAnswer, error_middleware, error_response
from later.api.pulsar import PulsarHandlers, parse_persistent_topic
from later.api.rotation import RotationHandlers, parse_secret_namespace
from later.api.routes import AUTHORIZATION, CROSS_SITE_PROTECTION, ERROR_ANSWER, REQUESTS, ROUTES, Route
from later.api.schedules import ScheduleHandlers
from later.api.task_answers import BytesInAnswers
from later.api.tasks import TaskHandlers
from later.api.topic_rows import ReadSnapshot
from later.api.topics import TopicHandlers, parse_topic_scope
from later.api.workers import WorkersHandler
from later.api.zaqar.endpoints import zaqar_routes
from later.api.zaqar.error_answers import answer_error
from later.core.address_guard import AddressGuard
from later.core.api_keys import Scope
from later.core.clock import Clock
from later.metrics import Metrics
from later.store.open import Store

if TYPE_CHECKING:
    from later.tracing.spans import SpanRecorder

TOPIC_PATH = "/topics/{topic:[^/]+}"
"""The path of a topic. A `/` in its name comes percent-encoded; braces are not allowed in aiohttp's default pattern."""
NAMESPACE_PATH = "/namespaces/{namespace:[^/]+}"
SCHEDULE_PATH = "/schedules/{id:[^/]+}"
PULSAR_NAMESPACE_PATH = "/admin/v2/namespaces/public/{namespace:[^/]+}"
"""The path of a namespace in Pulsar's API. The tenant `public` is the only one."""
PULSAR_TOPIC_PATH = "/admin/v2/persistent/public/{namespace:[^/]+}/{topic:[^/]+}"
CLAIMS = web.AppKey("claims", ClaimHandlers)
"""The key under which an application keeps what claims tasks, also for callers in its own process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiSettings:
    """The settings of the API.

    `max_body` is in bytes. `max_pending_writes` limits the tasks that wait for the store, `max_waiters` the claims that
    wait for tasks. The counts of a bulk job are kept for `remember_ms`. `lease_ms` is the length of a lease if the
    daemon's timeout applies to the task's topic. With `keeps_trace_context`, a task keeps that of its request. Without
    `keeps_history` there is none to show.
    `base_path` is what a proxy puts in front of all paths.
    """

    max_body: int
    max_pending_writes: int
    remember_ms: int
    lease_ms: int
    max_waiters: int
    base_path: str
    keeps_trace_context: bool
    keeps_history: bool


def build_app(
    settings: ApiSettings,
    *,
    store: Store,
    metrics: Metrics,
    guard: AddressGuard,
    durable_writes: DurableWrites,
    authorization: Authorization,
    cross_site_protection: CrossSiteProtection,
    health: HealthSource,
    wake_delay_ticker: Callable[[int, Sequence[str]], None],
    read_snapshot: ReadSnapshot,
    pages: Sequence[Route] = (),
    move_clock: MoveClock | None = None,
    span_recorder: SpanRecorder | None = None,
) -> web.Application:
    """Build the application of `later serve`, or, with `move_clock`, that of `later dev`.

    `wake_delay_ticker` is called with the due time (ms) of the earliest task that was just created or moved to delay,
    and with the ids of all of them, if they are known.
    `guard` judges the callbacks that are written. `pages` are the routes of the console.
    `read_snapshot` returns the latest census of all topics. `span_recorder` traces creates.
    `cross_site_protection` checks each request first if the application is served by `server.Runner`.
    """
    pending_writes, bytes_in_answers = PendingWrites(settings.max_pending_writes), BytesInAnswers()
    metrics.pending_writes.set_function(lambda: pending_writes.count)
    claims = ClaimHandlers(
        store=store,
        metrics=metrics,
        authorization=authorization,
        pending_writes=pending_writes,
        bytes_in_answers=bytes_in_answers,
        max_waiters=settings.max_waiters,
    )
    signals = DueSignals(wake_delay_ticker, claims.queues, store)
    callback_check = CallbackCheck(guard, metrics)
    routes = [
        *_task_routes(
            settings,
            store,
            metrics,
            callback_check,
            pending_writes,
            bytes_in_answers,
            signals,
            durable_writes=durable_writes,
            span_recorder=span_recorder,
        ),
        *_claim_routes(claims),
        *_schedule_routes(
            ScheduleHandlers(
                store=store,
                metrics=metrics,
                callback_check=callback_check,
                max_body=settings.max_body,
                pending_writes=pending_writes,
                bytes_in_answers=bytes_in_answers,
                signals=signals,
            )
        ),
        *_policy_routes(store, callback_check, settings.max_body),
        *_signing_routes(store, settings.max_body),
        *_history_routes(
            HistoryHandlers(
                store=store,
                pending_writes=pending_writes,
                bytes_in_answers=bytes_in_answers,
                is_kept=settings.keeps_history,
            )
        ),
        *_census_routes(store, read_snapshot),
        *_health_routes(authorization, health, store.clock),
        Route("GET", "/whoami", WhoAmIHandler(settings.max_body).show, NoScope.ANY_KEY),
        *pages,
        *zaqar_routes(
            store=store,
            metrics=metrics,
            authorization=authorization,
            pending_writes=pending_writes,
            signals=signals,
            bytes_in_answers=bytes_in_answers,
            durable_writes=durable_writes,
            max_body=settings.max_body,
            why_not_ready=health.why_not_ready,
        ),
    ]
    if move_clock is not None:
        clock = ClockHandlers(store=store, move=move_clock, queues=claims.queues, authorization=authorization)
        routes.append(Route("GET", "/dev/clock", clock.show, Scope.READ))
        routes.append(Route("POST", "/dev/clock", clock.move, Scope.ADMIN))
    app = _build_from_routes(routes, authorization, cross_site_protection, metrics, answer_error, settings.base_path)
    app[CLAIMS] = claims
    app.on_shutdown.append(claims.end_waiting)
    return app


def build_health_app(
    *,
    authorization: Authorization,
    cross_site_protection: CrossSiteProtection,
    metrics: Metrics,
    health: HealthSource,
    clock: Clock,
) -> web.Application:
    """Build the application of `later worker --health`. `clock` is the store's."""
    routes = _health_routes(authorization, health, clock)
    return _build_from_routes(routes, authorization, cross_site_protection, metrics, error_response)


def _task_routes(
    settings: ApiSettings,
    store: Store,
    metrics: Metrics,
    callback_check: CallbackCheck,
    pending_writes: PendingWrites,
    bytes_in_answers: BytesInAnswers,
    signals: DueSignals,
    *,
    durable_writes: DurableWrites,
    span_recorder: SpanRecorder | None,
) -> list[Route]:
    """Return the routes of tasks and bulk jobs."""
    max_body = settings.max_body
    tasks = TaskHandlers(
        store=store,
        metrics=metrics,
        callback_check=callback_check,
        max_body=max_body,
        pending_writes=pending_writes,
        signals=signals,
        durable_writes=durable_writes,
        keeps_trace_context=settings.keeps_trace_context,
        span_recorder=span_recorder,
    )
    batches = BatchHandlers(
        store=store,
        metrics=metrics,
        callback_check=callback_check,
        max_body=max_body,
        remember_ms=settings.remember_ms,
        pending_writes=pending_writes,
        bytes_in_answers=bytes_in_answers,
        signals=signals,
        durable_writes=durable_writes,
        keeps_trace_context=settings.keeps_trace_context,
        span_recorder=span_recorder,
    )
    edits = EditHandlers(
        store=store,
        callback_check=callback_check,
        max_body=max_body,
        pending_writes=pending_writes,
        signals=signals,
        durable_writes=durable_writes,
    )
    listing = ListHandlers(
        store=store, max_body=max_body, pending_writes=pending_writes, bytes_in_answers=bytes_in_answers
    )
    explain = ExplainHandlers(store=store, max_body=max_body, pending_writes=pending_writes, lease_ms=settings.lease_ms)
    jobs = JobHandlers(store, pending_writes)
    return [
        Route("POST", "/create", tasks.create, Scope.CREATE, is_fast=True),
        Route("POST", "/query", tasks.query, Scope.READ, is_fast=True),
        Route("POST", "/delete", tasks.delete, Scope.EDIT, is_fast=True),
        Route("POST", "/create/batch", batches.create, Scope.CREATE, ("job", "run", "dry_run", "durability")),
        Route("POST", "/query/batch", batches.query, Scope.READ),
        Route("POST", "/delete/batch", batches.delete, Scope.EDIT, ("pending", "dry_run", "durability")),
        Route("GET", "/jobs", jobs.list_jobs, Scope.READ, ("cursor", "limit")),
        Route("GET", "/jobs/{id}", jobs.show, Scope.READ, ("run",)),
        Route("POST", "/list", listing.list_tasks, Scope.READ),
        Route("POST", "/update", edits.update, Scope.EDIT),
        Route("POST", "/run-now", edits.run_now, Scope.EDIT),
        Route("POST", "/redrive", edits.redrive, Scope.EDIT),
        Route("POST", f"{TOPIC_PATH}/purge", edits.purge, Scope.EDIT),
        Route("POST", "/explain", explain.explain, Scope.READ),
    ]


def _census_routes(store: Store, read_snapshot: ReadSnapshot) -> list[Route]:
    """Return the routes that show the topics, and the store as a whole."""
    topics, forecasts = TopicHandlers(store, read_snapshot), ForecastHandlers(store, read_snapshot)
    return [
        Route("GET", "/overview", OverviewHandler(store, read_snapshot).show, Scope.READ, ("topics",)),
        Route("GET", "/topics", topics.list_topics, Scope.READ, ("namespace", "cursor", "limit", "sort")),
        Route("GET", TOPIC_PATH, topics.show, Scope.READ),
        Route("GET", f"{TOPIC_PATH}/forecast", forecasts.show_topic, Scope.READ, ("hours", "step", "rate")),
        Route("GET", "/forecast", forecasts.show_all, Scope.READ, ("hours", "step")),
        Route("GET", "/workers", WorkersHandler(store).show, Scope.READ),
    ]


def _claim_routes(claims: ClaimHandlers) -> list[Route]:
    """Return the routes of consumers."""
    leases = claims.leases
    return [
        Route("POST", "/claim", claims.claim, Scope.CLAIM, is_fast=True),
        Route("POST", "/ack", leases.ack, Scope.CLAIM, is_fast=True),
        Route("POST", "/nack", leases.nack, Scope.CLAIM, is_fast=True),
        Route("POST", "/release", leases.release, Scope.CLAIM, is_fast=True),
        Route("POST", "/extend", leases.extend, Scope.CLAIM, is_fast=True),
    ]


def _schedule_routes(schedules: ScheduleHandlers) -> list[Route]:
    """Return the routes of schedules. To write one needs two scopes, because it creates tasks from then on."""
    path, change = SCHEDULE_PATH, partial(Route, scope=Scope.EDIT, also=Scope.CREATE)
    return [
        Route("GET", "/schedules", schedules.list_schedules, Scope.READ, ("namespace", "cursor", "limit")),
        Route("GET", path, schedules.show, Scope.READ),
        change("PUT", path, schedules.put),
        change("DELETE", path, schedules.delete),
        change("POST", f"{path}/pause", schedules.pause),
        change("POST", f"{path}/resume", schedules.resume),
        change("POST", f"{path}/run-now", schedules.run_now),
    ]


def _policy_routes(store: Store, callback_check: CallbackCheck, max_body: int) -> list[Route]:
    """Return the routes of policies, later's own and Pulsar's."""
    build = partial(
        PolicyHandlers,
        policies=store.policies,
        audit_trail=store.audit_trail,
        callback_check=callback_check,
        max_body=max_body,
    )
    topics, namespaces = build(parse_scope=parse_topic_scope), build(parse_scope=parse_namespace_policy)
    routes = [
        Route("POST", f"{TOPIC_PATH}/pause", topics.pause, Scope.ADMIN),
        Route("POST", f"{TOPIC_PATH}/resume", topics.resume, Scope.ADMIN),
    ]
    for scope_path, handlers in ((TOPIC_PATH, topics), (NAMESPACE_PATH, namespaces)):
        path = f"{scope_path}/policy"
        routes += [
            Route("GET", path, handlers.show, Scope.READ, ("applied",)),
            Route("PUT", path, handlers.replace, Scope.ADMIN),
            Route("PATCH", path, handlers.merge, Scope.ADMIN),
            Route("DELETE", path, handlers.remove, Scope.ADMIN),
        ]
    pulsar_scopes = ((PULSAR_NAMESPACE_PATH, parse_namespace_policy), (PULSAR_TOPIC_PATH, parse_persistent_topic))
    for scope_path, parse_scope in pulsar_scopes:
        pulsar = PulsarHandlers(
            policies=store.policies, audit_trail=store.audit_trail, max_body=max_body, parse_scope=parse_scope
        )
        path = f"{scope_path}/delayedDelivery"
        routes += [
            Route("GET", path, pulsar.show, Scope.READ, ("applied",)),
            Route("POST", path, pulsar.change, Scope.ADMIN),
            Route("DELETE", path, pulsar.remove, Scope.ADMIN),
        ]
    return routes


def _signing_routes(store: Store, max_body: int) -> list[Route]:
    routes = []
    for scope_path, parse_scope in ((TOPIC_PATH, parse_topic_scope), (NAMESPACE_PATH, parse_secret_namespace)):
        signing = RotationHandlers(store=store, max_body=max_body, parse_scope=parse_scope)
        routes += [
            Route("GET", f"{scope_path}/signing", signing.show, Scope.ADMIN),
            Route("POST", f"{scope_path}/signing/rotate", signing.rotate, Scope.ADMIN),
        ]
    return routes


def _history_routes(history: HistoryHandlers) -> list[Route]:
    return [
        Route("GET", "/history", history.show, Scope.READ, ("series", "topic", "since", "step")),
        Route("GET", "/deliveries", history.list_deliveries, Scope.READ, ("topic", "outcome", "limit")),
    ]


def _health_routes(authorization: Authorization, source: HealthSource, clock: Clock) -> list[Route]:
    health = HealthHandlers(source, may_see_why=authorization.may_see_why, clock=clock)
    return [
        Route("GET", "/livez", health.live, NoScope.OPEN, is_health=True),
        Route("GET", "/readyz", health.ready, NoScope.OPEN, is_health=True),
        Route("GET", "/metrics", health.metrics, Scope.METRICS, is_health=True),
    ]


def _build_from_routes(
    routes: Sequence[Route],
    authorization: Authorization,
    cross_site_protection: CrossSiteProtection,
    metrics: Metrics,
    answer_error: ErrorAnswer,
    base_path: str = "",
) -> web.Application:
    """Build an application of these routes, and of those that tell about them.

    Handlers limit bodies themselves, so aiohttp's limit is their largest.
    """
    about = AboutHandlers()
    routes = [
        *routes,
        Route("GET", "/", about.list_routes, NoScope.OPEN),
        Route("GET", "/version", about.version, NoScope.OPEN),
        Route("GET", "/openapi.json", DescriptionHandler(base_path).show, NoScope.OPEN),
        Route("GET", "/problems/{name}", about.problem, NoScope.OPEN),
    ]
    app = web.Application(middlewares=[error_middleware(answer_error)], client_max_size=MAX_BATCH_BYTES)
    for route in routes:
        # a GET route answers HEAD, too
        add = app.router.add_get if route.method == "GET" else partial(app.router.add_route, route.method)
        add(route.path, route.checked_handler(authorization), expect_handler=_wait_for_handler)
    app[ROUTES] = routes
    app[AUTHORIZATION] = authorization
    app[CROSS_SITE_PROTECTION] = cross_site_protection
    app[ERROR_ANSWER] = answer_error
    app[REQUESTS] = metrics.requests
    return app


async def _wait_for_handler(request: web.Request) -> None:
    """Tell a client that waits for it nothing yet: a handler that reads the body tells it to go on."""
