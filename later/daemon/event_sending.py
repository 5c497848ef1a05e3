"""The option --events of a process: its URL, judged as a callback, and the parts that make events for operators."""

from __future__ import annotations

import time

from later.api.callback_check import CallbackCheck
from later.config import Config
from later.core.address_guard import AddressGuard
from later.core.errors import ConfigError, Refused
from later.daemon.store_metrics import StoreMetrics
from later.metrics import Metrics
from later.store.open import Store
from later.worker.operator_events import EventCollector, EventWriter
from later.worker.worker import Worker


def check_events_url(config: Config, guard: AddressGuard, metrics: Metrics) -> None:
    """Judge the URL of --events as a callback. Raises ConfigError."""
    if config.events is None:
        return
    try:
        CallbackCheck(guard, metrics).check(config.events)
    except Refused as refused:
        raise ConfigError(f"--events: {refused.detail}") from None


def build_event_writer(
    config: Config, store: Store, metrics: Metrics, store_metrics: StoreMetrics, worker: Worker | None
) -> EventWriter | None:
    """Return the writer of events, and begin to count what they are made of; None without --events."""
    if config.events is None:
        return None
    collector = EventCollector(time.monotonic)
    metrics.on_death = collector.note_death
    store.audit_trail.on_event = collector.note_change
    store_metrics.on_snapshot = collector.note_snapshot
    return EventWriter(
        store=store,
        metrics=metrics,
        collector=collector,
        url=config.events,
        on_created=worker.delay_ticker.wake if worker is not None else lambda due_at: None,
    )
