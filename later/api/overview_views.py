"""The parts of an overview that only keys of all namespaces see: the store, the workers, and the last slot."""

from __future__ import annotations

from typing import Any

from later.core.clock import rfc3339
from later.core.history import SHORT, Fields, value_in_slot
from later.core.snapshot import Snapshot
from later.store.instances import Instances
from later.store.stats import HEARTBEAT_TIMEOUT_MS

RATES = ("created", "done", "failed", "busy", "gone", "dead", "retries")
"""The counts of a slot that are shown by the second."""


def store_view(snapshot: Snapshot | None) -> dict[str, Any]:
    """Return the store, as the census has seen it; it is up, because it answers."""
    facts = None if snapshot is None else snapshot.store
    return {
        "up": True,
        "name": None if facts is None else facts.name,
        "version": None if facts is None else facts.version,
        "memory": None if facts is None else facts.memory,
        "max_memory": None if facts is None else facts.max_memory,
    }


def workers_view(instances: Instances, now: int) -> dict[str, Any]:
    """Return how many workers sent a heartbeat lately, and the sum of the slots that they told."""
    alive = {name for name, at in instances.workers.items() if now - at < HEARTBEAT_TIMEOUT_MS}
    told = [heartbeat for name, heartbeat in instances.heartbeats.items() if name in alive]
    last = max(instances.workers.values(), default=None)
    return {
        "count": len(alive),
        "slots": sum(heartbeat.slots for heartbeat in told),
        "slots_in_use": sum(heartbeat.slots_in_use for heartbeat in told),
        "last_heartbeat_at": None if last is None else rfc3339(last),
    }


def rates_view(slot_at: int, fields: Fields) -> dict[str, Any]:
    """Return what happened in a slot, by the second."""
    step_s = SHORT.length_ms // 1000
    rates = {name: (value_in_slot(name, fields) or 0) / step_s for name in RATES}
    return {"slot_at": rfc3339(slot_at), "step_s": step_s, **rates}


def lateness_view(fields: Fields) -> dict[str, Any] | None:
    """Return the lateness of a slot's deliveries that nothing held; None if there were none."""
    p50, p99 = value_in_slot("lateness_p50", fields), value_in_slot("lateness_p99", fields)
    return None if p50 is None or p99 is None else {"p50_s": p50, "p99_s": p99}
