"""The HTTP API on a real store, or on one in this process, at a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import ClientResponse, DummyCookieJar
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, BaseRunner, Request
from prometheus_client import generate_latest
from redis.asyncio import Redis
from yarl import URL

from later.api.access_log import ACCESS_LOG, AccessLog
from later.api.application.app import ApiSettings, build_app
from later.api.authorization import Authorization
from later.api.console_sessions import SessionCookie
from later.api.cross_site import CrossSiteProtection
from later.api.durable_writes import DurableWrites
from later.api.health import HealthSource
from later.api.server import Runner
from later.api.server_connections import ServerConnections
from later.core.address_guard import AddressGuard
from later.core.clock import Clock, rfc3339
from later.core.durability import Durability
from later.core.errors import LaterError, StoreDown
from later.core.past_failures import MAX_FAILURES
from later.core.policy import Policy
from later.daemon.census import Census
from later.daemon.http_server import console_routes
from later.daemon.shared_census import SharedCensus
from later.metrics import Exposition, Metrics
from later.store.client import StoreClient
from later.store.keys import Keys
from later.store.open import Store, build_store
from later.store.schema import check_store
from later.store.scripts import Command
from later.tracing.spans import SpanRecorder
from tests.builders import NO_GUARD, NOW
from tests.servers import shared_server

Answer = tuple[int, Any]

MINIMAL = {"topic": "order", "callback": "http://127.0.0.1:8888/success"}
"""The smallest valid body of a create."""
COOKIE = SessionCookie.of_server("", is_secure=False)
DAY_MS = 86_400_000


class UnreliableClient(StoreClient):
    """A client of a store of which some shards are down, or that does not answer until `resume` is set."""

    shards_down: Sequence[int] = ()
    resume: asyncio.Event | None = None

    async def execute_each(self, verb: str, commands: Sequence[Command]) -> list[Any]:
        if self.resume is not None:
            await self.resume.wait()
        sent = [command for command in commands if not self._is_for_shard_down(command)]
        answers = iter(await super().execute_each(verb, sent))
        return [
            StoreDown("the store is gone") if self._is_for_shard_down(command) else next(answers)
            for command in commands
        ]

    async def drop_idle_connections(self) -> None:
        await self._connections.drop_idle()

    def _is_for_shard_down(self, command: Command) -> bool:
        return any(
            b"{later:%d}" % shard in part for part in command if isinstance(part, bytes) for shard in self.shards_down
        )


@dataclass(kw_only=True, slots=True)
class ApiFixture:
    """The API being served: an HTTP client of it, and the parts that it was built from.

    `wakes` are the times for which it woke the delay ticker, `woken_for` the ids of the tasks. It is ready unless
    a test sets `not_ready`.
    """

    http: TestClient[Request, Application]
    client: UnreliableClient
    redis: Redis
    keys: Keys
    store: Store
    metrics: Metrics
    wakes: list[int]
    woken_for: list[list[str]]
    not_ready: LaterError | None = None

    async def post(self, path: str, body: object, **options: Any) -> Answer:
        """POST JSON, or bytes as they are, and return the status and body of the answer."""
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.post(path, **data, **options) as response:
            return response.status, await read_answer(response)

    async def get(self, path: str) -> Answer:
        async with self.http.get(path) as response:
            return response.status, await read_answer(response)

    async def request(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request by any method, its path as it is written, with JSON, bytes or no body."""
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        url = URL(f"{self.http.make_url('/')}{path[1:]}", encoded=True)
        async with self.http.session.request(method, url, **data) as response:
            return response.status, await read_answer(response)

    async def lose_store(self) -> None:
        """Let no connection reach the store from now on."""
        self.redis.connection_pool.connection_kwargs["path"] = "/no/such.sock"
        await self.client.drop_idle_connections()

    def metric(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(name)
        assert value is not None, generate_latest(self.metrics.registry).decode()
        return value


async def read_answer(response: ClientResponse) -> Any:
    """Return the body of an answer, None for status 204, and check its content type."""
    if response.status == 204:
        assert await response.read() == b""
        return None
    expected = "application/json" if response.status == 200 else "application/problem+json"
    assert response.headers["Content-Type"] == expected
    return await response.json(content_type=None)


class DaemonServer(TestServer):
    """A test server that serves as the daemon does: a client that disconnects cancels nothing."""

    def __init__(self, app: Application, connections: ServerConnections | None = None, base_path: str = "") -> None:
        super().__init__(app)
        self._connections = connections
        self._base_path = base_path

    async def _make_runner(self, **options: Any) -> BaseRunner:
        return Runner(self.app, self._connections, self._base_path, **{**options, "handler_cancellation": False})


@asynccontextmanager
async def serve_api(
    *,
    shards: int = 1,
    policy: Policy | None = None,
    max_body: int = 1024 * 1024,
    max_pending_writes: int = 10_000,
    max_waiters: int = 1000,
    keeps_trace_context: bool = False,
    keeps_history: bool = True,
    access_log: AccessLog | None = None,
    authorization: Authorization | Callable[[Store, Metrics], Authorization] | None = None,
    guard: AddressGuard | None = None,
    cross_site_protection: CrossSiteProtection | None = None,
    connections: ServerConnections | None = None,
    clock: Clock | None = None,
    keep_failures: int = MAX_FAILURES,
    base_path: str = "",
    cookie: SessionCookie = COOKIE,
    console: str = "on",
    span_recorder: SpanRecorder | None = None,
    server: str | None = None,
    durability_timeout_ms: int = 1000,
    store_offers: Durability | None = None,
) -> AsyncIterator[ApiFixture]:
    """Serve the whole API, on an empty store, at a fixed time unless a clock is given.

    A `server` of its own is checked as a daemon checks it, and may be another one after a failover.
    """
    redis = Redis.from_url(server or shared_server(), protocol=2, driver_info=None)
    keys, metrics = Keys("later", shards), Metrics()
    await redis.flushall()
    clock = clock or fixed_clock()
    client = UnreliableClient(
        redis,
        clock,
        timeout_s=10,
        observer=metrics.round_trip_observer,
        check=None if server is None else partial(check_store, prefix="later", shards=shards),
    )
    store = build_store(
        client,
        clock,
        keys,
        policy or Policy(),
        count_follow_ups=metrics.count_follow_ups,
        keep_failures=keep_failures,
    )
    await store.policies.read()
    wakes: list[int] = []
    woken_for: list[list[str]] = []

    def note_wake(due_at: int, ids: Sequence[str]) -> None:
        wakes.append(due_at)
        woken_for.append([*ids])

    async def why_not_ready() -> LaterError | None:
        return api.not_ready

    async def exposition(accept: str) -> Exposition:
        return metrics.exposition(accept)

    authorization = authorization(store, metrics) if callable(authorization) else authorization or Authorization()
    census = SharedCensus(store, Census(store, metrics))
    app = build_app(
        ApiSettings(
            max_body=max_body,
            max_pending_writes=max_pending_writes,
            remember_ms=7 * DAY_MS,
            lease_ms=30_000,
            max_waiters=max_waiters,
            base_path=base_path,
            keeps_trace_context=keeps_trace_context,
            keeps_history=keeps_history,
        ),
        store=store,
        metrics=metrics,
        guard=guard or NO_GUARD,
        durable_writes=DurableWrites(store, metrics, timeout_ms=durability_timeout_ms, own_level=store_offers),
        authorization=authorization,
        cross_site_protection=cross_site_protection or CrossSiteProtection(),
        health=HealthSource(
            why_not_ready=why_not_ready, exposition=exposition, count_away=lambda: len(store.away_shards)
        ),
        wake_delay_ticker=note_wake,
        pages=[] if console == "off" else console_routes(console, base_path, authorization, cookie),
        read_snapshot=census.look,
        span_recorder=span_recorder,
    )
    if access_log is not None:
        app[ACCESS_LOG] = access_log
    async with TestClient(DaemonServer(app, connections, base_path), cookie_jar=DummyCookieJar()) as http:
        api = ApiFixture(
            http=http,
            client=client,
            redis=redis,
            keys=keys,
            store=store,
            metrics=metrics,
            wakes=wakes,
            woken_for=woken_for,
        )
        yield api
    await census.stop()
    await client.aclose()
    await redis.aclose()


def fixed_clock() -> Clock:
    """Return a clock of the store whose high end is always NOW, as is this machine's."""
    clock = Clock(lambda: 0.0, lambda: NOW / 1000)
    clock.observe((NOW - 2) * 1000, -0.001, 0)
    assert clock.now().high == NOW
    return clock


def bad_request(detail: str, field: str | None = None) -> Answer:
    """Return the answer to a wrong request."""
    body: dict[str, Any] = {"type": "/problems/refused", "title": "Bad Request", "status": 400, "detail": detail}
    return 400, body if field is None else {**body, "field": field}


def refusals(wrong: Sequence[tuple[object, str]]) -> list[Answer]:
    """Return the answers to requests with a wrong field; each comes with the detail, which begins with its name."""
    return [bad_request(detail, detail.partition(":")[0]) for _, detail in wrong]


def create_bodies(*ids: str) -> list[dict[str, Any]]:
    """Return the bodies of creates with these ids."""
    return [{**MINIMAL, "id": id} for id in ids]


def create_result(id: str, created: bool = True, *, delay: int = 0) -> dict[str, Any]:
    """Return the answer to a create with a caller's id, `delay` seconds before the task is due."""
    return {"id": id, "due_at": rfc3339(NOW + 1000 * delay), "created": created}


def item_error(status: int, detail: str, **more: object) -> dict[str, Any]:
    return {"error": {"status": status, "detail": detail, **more}}


def ok(**answer: Any) -> Answer:
    return 200, answer


def id_per_shard(api: ApiFixture) -> list[str]:
    """Return one id for each shard."""
    ids: dict[int, str] = {}
    for number in range(1000):
        ids.setdefault(api.keys.shard_of(f"n{number}").index, f"n{number}")
    return [ids[shard.index] for shard in api.keys.shards]
