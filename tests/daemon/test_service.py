"""The stop of a service: everything is stopped and closed, whichever step raises."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import AsyncMock

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from later.api.health import HealthSource
from later.api.server import Runner
from later.config import load
from later.core.api_keys import ApiKey, Scope
from later.core.errors import LaterError
from later.daemon.heartbeat_sender import HeartbeatSender
from later.daemon.lifecycle import wait_for_all
from later.daemon.service import Service
from later.delivery.sender import Sender
from later.metrics import Metrics
from later.store.open import Store
from later.worker.shard_sharing import ShardSharing
from later.worker.ticker import Ticker, TickResult, start_tickers
from later.worker.worker import Worker
from tests.store_fixture import StoreFixture

HEALTH = HealthSource(why_not_ready=AsyncMock(), exposition=AsyncMock())
STEPS = {
    "the worker": (Worker, "stop"),
    "the API": (Runner, "cleanup"),
    "the HTTP client": (Sender, "close"),
    "the tickers": (Service, "cancel_tickers"),
    "the heartbeat": (HeartbeatSender, "remove"),
    "the store": (Store, "aclose"),
}
"""The steps of a stop: the class, and its method."""


async def a_service() -> Service:
    """Return a service that works, on a store that is not there."""
    service = Service(
        load("up", {"redis": "redis://127.0.0.1:1", "listen": "127.0.0.1:0"}, {}),
        Metrics(),
        health=HEALTH,
        fail=AsyncMock(),
    )
    await service.start_work()
    await service.http_server.listen()
    return service


@pytest.mark.parametrize("broken", STEPS)
async def test_a_stop_closes_everything_even_if_one_step_raises(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = await a_service()
    done: list[str] = []

    def patch(step: str, owner: type, method: str) -> None:
        original = getattr(owner, method)

        async def run(*arguments: object) -> None:
            await original(*arguments)
            done.append(step)
            if step == broken:
                raise RuntimeError("a bug")

        monkeypatch.setattr(owner, method, run)

    for step, (owner, method) in STEPS.items():
        patch(step, owner, method)
    with pytest.raises(RuntimeError, match="a bug"):
        await service.stop()
    assert sorted(done) == sorted(STEPS)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("ticker-")]


async def test_a_service_that_was_not_started_can_be_stopped() -> None:
    config = load("up", {"redis": "redis://127.0.0.1:1"}, {})
    await Service(config, Metrics(), health=HEALTH, fail=AsyncMock()).stop()


async def test_that_deliveries_are_not_signed_is_logged_also_if_the_store_is_away_at_the_start() -> None:
    config = load("up", {"redis": "redis://127.0.0.1:1"}, {})
    service = Service(config, Metrics(), health=HEALTH, fail=AsyncMock())
    with capture_logs() as logs:
        await service.open()
    assert [event["event"] for event in logs] == ["deliveries are not signed", "store unavailable"]
    await service.stop()


async def test_an_api_whose_keys_cannot_be_read_is_not_ready(store: StoreFixture, server_url: str) -> None:
    await store.redis.set(store.keys.api_keys, "x")
    for options, is_ready in (({}, False), ({"auth": "off"}, True)):
        config = load("serve", {"redis": server_url, "shards": str(len(store.keys.shards)), **options}, {})
        service = Service(config, Metrics(), health=HEALTH, fail=AsyncMock())
        try:
            error = await service.why_store_unavailable()
        finally:
            await service.stop()
        assert (error is None) == is_ready
        assert is_ready or str(error).startswith("the API keys cannot be read: ")


async def test_a_daemon_that_never_read_the_policies_is_not_ready(store: StoreFixture, server_url: str) -> None:
    """Every create would be answered 503: such as after an upgrade, where the store's user may not read them."""
    await store.redis.set(store.keys.policies, "x")
    config = load("serve", {"redis": server_url, "shards": str(len(store.keys.shards))}, {})
    service = Service(config, Metrics(), health=HEALTH, fail=AsyncMock())
    try:
        assert await service.why_store_unavailable() is not None
        await store.redis.delete(store.keys.policies)
        assert await service.why_store_unavailable() is None
    finally:
        await service.stop()


async def test_a_service_reads_all_that_it_reads_each_second_in_one_round_trip(
    store: StoreFixture, server_url: str
) -> None:
    metrics = Metrics()
    config = load("serve", {"redis": server_url, "shards": str(len(store.keys.shards)), "auth": "keys"}, {})
    service = Service(config, metrics, health=HEALTH, fail=AsyncMock())
    name = "later_store_round_trip_duration_seconds_count"
    try:
        await service.open()
        await service.refresh(0)
        await service.note_keys(0)
        trips = {sample.labels["verb"]: sample.value for family in metrics.registry.collect()
                 for sample in family.samples if sample.name == name and sample.value}  # fmt: skip
    finally:
        await service.stop()
    del trips["open"], trips["stats"], trips["policies"]  # once, at the start
    assert trips == {"refresh": 1}
    assert service.http_server.authorization.has_had_keys is False


async def test_workers_share_shards_even_if_their_heartbeats_cannot_be_written(
    store: StoreFixture, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.redis.set(store.keys.instances, "x")
    monkeypatch.setattr(ShardSharing, "beat", beat := AsyncMock())
    config = load("worker", {"redis": server_url, "shards": str(len(store.keys.shards))}, {})
    service = Service(config, Metrics(), health=HEALTH, fail=AsyncMock())
    try:
        with pytest.raises(LaterError):
            await service.heartbeat.tick(0)
    finally:
        await service.stop()
    beat.assert_awaited_once()


async def test_a_key_that_has_ended_is_in_the_audit_trail_once(store: StoreFixture, server_url: str) -> None:
    ended = ApiKey(
        id="ended123", digest="0" * 64, name="old", namespace="shop", scopes=frozenset({Scope.READ}),
        created_at=0, expires_at=1, rate=None,
    )  # fmt: skip
    await store.key_book.change(lambda known, now: {ended.id: ended})
    for _ in range(2):
        config = load("serve", {"redis": server_url, "shards": str(len(store.keys.shards)), "auth": "keys"}, {})
        service = Service(config, Metrics(), health=HEALTH, fail=AsyncMock())
        try:
            for _ in range(2):
                await service.refresh(0)
                await service.note_keys(0)
        finally:
            await service.stop()
    events = [entry.fields async for entry in store.audit_trail.read()]
    assert [(event["event"], event["id"], event["namespace"]) for event in events] == [
        ("key ended", "ended123", "shop")
    ]


async def hang(now: int) -> TickResult:
    await asyncio.Event().wait()
    raise AssertionError("nothing ends this wait")


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_ticker_that_hangs_is_told_only_while_the_store_answers(
    is_away: bool, store: StoreFixture, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    url = "redis://127.0.0.1:1" if is_away else server_url
    config = load("serve", {"redis": url, "shards": str(len(store.keys.shards))}, {})
    service = Service(config, metrics, health=HEALTH, fail=AsyncMock())
    ticker = Ticker.on_local_clock("delay", hang, 100, metrics.count_tick_error)
    start_tickers([ticker], metrics)
    try:
        assert await service.why_not_alive() is None
        monkeypatch.setattr("later.worker.ticker.HANGS_AFTER_S", -1.0)
        monkeypatch.setattr("later.daemon.service.GRACE_S", 0.0)
        error = await service.why_not_alive()
        others = await service.why_not_alive(AsyncMock(return_value=["expiry"]))
    finally:
        await ticker.cancel()
        await service.stop()
    assert (error is None) == is_away
    assert is_away or str(error) == "no tick has ended for more than a minute: delay"
    assert is_away or str(others) == "no tick has ended for more than a minute: delay, expiry"


async def test_a_process_that_was_stopped_for_a_minute_gets_time_to_end_its_ticks(
    store: StoreFixture, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes that came meanwhile are answered first, in its own processes and in the others."""
    metrics = Metrics()
    config = load("serve", {"redis": server_url, "shards": str(len(store.keys.shards))}, {})
    service = Service(config, metrics, health=HEALTH, fail=AsyncMock())
    goes_on = asyncio.Event()

    async def tick(now: int) -> TickResult:
        await goes_on.wait()
        await store.redis.ping()
        return TickResult(0, None)

    others = AsyncMock(side_effect=[["expiry"], []])
    ticker = Ticker.on_local_clock("delay", tick, 100, metrics.count_tick_error)
    start_tickers([ticker], metrics)
    monkeypatch.setattr(ticker, "_last_end_s", time.monotonic() - 100)
    asyncio.get_running_loop().call_later(0.02, goes_on.set)
    try:
        assert service.hung_tickers() == ["delay"]
        assert await service.why_not_alive(others) is None
    finally:
        await ticker.cancel()
        await service.stop()


async def test_the_port_stays_open_for_a_while_after_a_stop_has_begun() -> None:
    service = await a_service()
    [(host, port)] = [(host, port) for host, port, *_ in service.http_server._runner.addresses]
    stop = asyncio.create_task(service.stop(notice_s=0.3))
    started_at = asyncio.get_running_loop().time()
    await asyncio.sleep(0.1)
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    await stop
    assert asyncio.get_running_loop().time() - started_at >= 0.3
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)


async def test_all_steps_end_before_the_error_of_one_is_raised() -> None:
    ended = asyncio.Event()

    async def fail() -> None:
        raise RuntimeError("a bug")

    async def end_late() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        ended.set()

    with pytest.raises(RuntimeError):
        await wait_for_all(fail(), end_late())
    assert ended.is_set()


async def test_the_description_names_the_base_path_of_the_daemon(server_url: str) -> None:
    config = load("up", {"redis": server_url, "listen": "127.0.0.1:0", "base_path": "/later"}, {})
    service = Service(config, Metrics(), health=HEALTH, fail=AsyncMock())
    (address,) = await service.http_server.listen()
    async with ClientSession() as http, http.get(f"http://{address}/later/openapi.json") as answer:
        assert (await answer.json())["servers"] == [{"url": "/later/"}]
    await service.stop()
