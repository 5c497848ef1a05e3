"""The durability of a daemon's writes, and what it says at the start of levels that its store does not offer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import structlog

from later.api.durable_writes import DurableWrites
from later.config import Config
from later.core.durability import PRIMARY, Durability
from later.core.policy_scopes import SettingsMap
from later.metrics import Metrics
from later.store.open import Store

MAX_NAMED = 10
"""Policies that are named for one level, at most."""

log = structlog.get_logger()


def build_durable_writes(config: Config, store: Store, metrics: Metrics) -> DurableWrites:
    """Return the levels of durability of all writes of this process."""
    return DurableWrites(
        store,
        metrics,
        timeout_ms=config.durability_timeout_ms,
        own_level=None if config.store_offers == "auto" else Durability(config.store_offers),
    )


async def report_missing_levels(config: Config, store: Store, durable_writes: DurableWrites) -> None:
    """Log which levels are asked for that the store does not offer, by which options and policies. Raises StoreDown."""
    settings = (await store.policies.read()).settings if config.runs_api else SettingsMap()
    for level in [level for level in Durability if level is not PRIMARY]:
        asked_by = [*_options_for(level, config), *islice(_policies_for(level, settings), MAX_NAMED)]
        offer = await durable_writes.why_not(level) if asked_by else None
        if offer is not None:
            log.warning("durability not on offer", durability=str(level), asked_by=asked_by, reason=offer.reason)


def _options_for(level: Durability, config: Config) -> list[str]:
    """Return the options that ask for a level."""
    options = ["--durability"] if config.runs_api and config.policy.durability is level else []
    return [*options, "--settle-durability"] if config.runs_worker and config.settle_durability is level else options


def _policies_for(level: Durability, settings: SettingsMap) -> Iterator[str]:
    """Yield the topics and namespaces whose policies ask for a level."""
    for scope in settings.scopes_where(lambda summary: level in summary.durabilities):
        if settings[scope].fields.get("durability") == level:
            yield f"{scope.level} {scope.name}"
