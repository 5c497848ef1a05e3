"""The audit trail: events are in the log at once, and soon in the store, whatever state the store is in."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from structlog.testing import capture_logs

from later.core.audit_event import AUDIT_LOGGER, AuditAction, AuditEvent, AuditOutcome
from later.store import audit_trail
from later.store.audit_trail import MAX_EVENTS, MAX_WAITING
from tests.store_fixture import StoreFixture


@pytest.fixture
def shards() -> int:
    """Return 1: nothing here is in a shard."""
    return 1


def an_event(key: str | None = "AbCd1234", **details: Any) -> AuditEvent:
    return AuditEvent(
        action=AuditAction.TOPIC_PURGED,
        key=key,
        peer="10.0.0.9",
        namespace="shop",
        details={"topic": "shop/a", **details},
    )


async def recorded(store: StoreFixture, since: int = 0, key: str | None = None) -> list[dict[str, Any]]:
    return [entry.fields async for entry in store.audit_trail.read(since, key)]


async def break_key(store: StoreFixture) -> None:
    """Let the store refuse each event, until the key is removed."""
    await store.redis.set(store.keys.audit_trail, "not a stream")


async def test_an_event_is_logged_at_once_and_read_back_from_the_store_after_a_flush(
    store: StoreFixture, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, AUDIT_LOGGER):
        store.audit_trail.record(an_event(tasks=7, reason=None))
    fields = {
        "event": "topic purged", "key": "AbCd1234", "peer": "10.0.0.9", "namespace": "shop", "outcome": "done",
        "topic": "shop/a", "tasks": 7,
    }  # fmt: skip
    assert [record.msg for record in caplog.records] == [fields]
    assert await recorded(store) == []
    assert await store.audit_trail.flush() == 1
    assert await recorded(store) == [fields]


async def test_events_are_read_by_key_and_from_a_time_on(store: StoreFixture) -> None:
    await store.time.measure()
    store.audit_trail.record(an_event("first"))
    await store.audit_trail.flush()
    (entry,) = [entry async for entry in store.audit_trail.read()]
    now = (await store.time.now()).high
    assert now - 60_000 < entry.at <= now
    store.audit_trail.record(an_event("cli:ann"))
    await store.audit_trail.flush()
    assert [fields["key"] for fields in await recorded(store)] == ["first", "cli:ann"]
    assert [fields["key"] for fields in await recorded(store, key="cli:ann")] == ["cli:ann"]
    assert [fields["key"] for fields in await recorded(store, since=entry.at)] == ["first", "cli:ann"]
    assert await recorded(store, since=now + 60_000) == []


async def test_events_about_a_key_are_found_by_its_id_and_tasks_of_that_id_are_not(store: StoreFixture) -> None:
    for action in (AuditAction.KEY_MADE, AuditAction.DEAD_REDRIVEN, AuditAction.KEY_ENDED):
        store.audit_trail.record(AuditEvent(action=action, key="cli:ann", details={"id": "AbCd1234"}))
    await store.audit_trail.flush()
    assert [fields["event"] for fields in await recorded(store, key="AbCd1234")] == ["key made", "key ended"]


async def test_an_event_whose_write_is_cancelled_by_a_stop_is_written_once(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, answered = asyncio.Event(), asyncio.Event()
    client = store.audit_trail._client
    execute_all = client.execute_all

    async def answer_late(*commands: Any) -> Any:
        answers = await execute_all(*commands)
        written.set()
        await answered.wait()
        return answers

    monkeypatch.setattr(client, "execute_all", answer_late)
    store.audit_trail.record(an_event())
    tick = asyncio.create_task(store.audit_trail.flush())
    await written.wait()
    tick.cancel()
    await asyncio.wait({tick})
    answered.set()
    await store.audit_trail.flush_or_log()
    assert len(await recorded(store)) == 1


async def test_events_wait_while_the_store_takes_none_and_the_oldest_are_dropped_and_counted(
    store: StoreFixture,
) -> None:
    await break_key(store)
    store.audit_trail.record(an_event("dropped"))
    with pytest.raises(Exception, match="WRONGTYPE"):
        await store.audit_trail.flush()
    for number in range(MAX_WAITING):
        store.audit_trail.record(an_event(f"kept{number}"))
    await store.redis.delete(store.keys.audit_trail)
    with capture_logs() as logs:
        assert await store.audit_trail.flush() == MAX_WAITING
    assert logs == [{"event": "audit events not stored", "log_level": "warning", "events": 1}]
    assert [fields["key"] for fields in await recorded(store)] == [f"kept{number}" for number in range(MAX_WAITING)]


async def test_the_end_of_a_process_says_how_many_events_only_the_log_has(store: StoreFixture) -> None:
    await break_key(store)
    store.audit_trail.record(an_event())
    with capture_logs() as logs:
        await store.audit_trail.flush_or_log()
    assert [(entry["event"], entry["events"]) for entry in logs] == [("audit events not stored", 1)]


async def test_the_store_keeps_the_last_events_and_at_most_two_nodes_more(
    store: StoreFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_EVENTS == 10_000
    monkeypatch.setattr(audit_trail, "MAX_EVENTS", 500)
    for number in range(900):
        store.audit_trail.record(an_event(str(number)))
    await store.audit_trail.flush()
    keys = [fields["key"] for fields in await recorded(store)]
    assert keys == [str(number) for number in range(900 - len(keys), 900)]
    assert 500 <= len(keys) <= 700


async def test_an_event_wakes_the_one_that_flushes_unless_it_continues_the_event_written_last(
    store: StoreFixture,
) -> None:
    wakes: list[None] = []
    store.audit_trail.on_record = lambda: wakes.append(None)
    store.audit_trail.record(an_event(tasks=1))
    assert len(wakes) == 1
    await store.audit_trail.flush()
    store.audit_trail.record(an_event(tasks=1))
    assert len(wakes) == 1
    await store.audit_trail.flush()
    await store.audit_trail.flush()
    store.audit_trail.record(an_event(tasks=1))
    assert len(wakes) == 2


async def test_the_requests_of_one_purge_that_wait_together_are_one_event(store: StoreFixture) -> None:
    for event in (
        an_event(tasks=5000), an_event(tasks=5000), an_event(tasks=7), an_event("other", tasks=1),
        an_event("other", tasks=1, reason="gone"), an_event(), an_event(),
    ):  # fmt: skip
        store.audit_trail.record(event)
    assert await store.audit_trail.flush() == 5
    found = [(fields["key"], fields.get("tasks")) for fields in await recorded(store)]
    assert found == [("AbCd1234", 10_007), ("other", 1), ("other", 1), ("AbCd1234", None), ("AbCd1234", None)]


def test_an_event_says_how_its_action_ended() -> None:
    event = AuditEvent(action=AuditAction.KEY_MADE, key="cli:ann", outcome=AuditOutcome.UNKNOWN)
    assert event.as_fields() == {
        "event": "key made", "key": "cli:ann", "peer": None, "namespace": None, "outcome": "unknown",
    }  # fmt: skip


async def test_an_entry_that_later_did_not_write_hides_no_other(store: StoreFixture) -> None:
    store.audit_trail.record(an_event())
    await store.audit_trail.flush()
    for written in ({"event": "{broken"}, {"event": "[]"}, {"event": '{"event": []}'}, {"x": "y"}):
        await store.redis.xadd(store.keys.audit_trail, written)  # type: ignore[arg-type]  # invariant in redis-py
    await store.redis.xadd(store.keys.audit_trail, {"event": '{"event": "x", "at": 1e300}'})
    events = [fields["event"] for fields in await recorded(store)]
    assert events == ["topic purged", *["unreadable entry"] * 4, "x"]
    assert await recorded(store, key="AbCd1234") == [(await recorded(store))[0]]
