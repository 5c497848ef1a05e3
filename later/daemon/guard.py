"""The address guard of a daemon: built from its options, and on or off by what the daemon is and where it listens."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from later.config import Config
from later.core.address_guard import AddressGuard
from later.delivery.own_address import OwnAddresses

log = structlog.get_logger("later.daemon")


def build_guard(config: Config) -> AddressGuard:
    """Return the guard that the options say; it is on."""
    return AddressGuard(
        is_own=OwnAddresses(time.monotonic).have,
        allow=config.guard_allow,
        deny=config.guard_deny,
        https_only=config.https_only,
        has_proxy=config.proxy is not None,
    )


def resolve_guard(config: Config) -> Config:
    """Return the configuration with `guard` on, off, or auto if it is off as long as there are no keys.

    By default the guard is off only where every caller reaches the same addresses without later.
    """
    may_be_off = config.runs_store and config.listen.is_loopback and not config.guard_deny
    return config if config.guard != "auto" or may_be_off else replace(config, guard="on")


def why_guard_is_off(guard: str, *, has_keys: bool) -> str | None:
    """Return the reason why a guard that `resolve_guard` returned is off, or None if it is on."""
    if guard == "off":
        return "--guard off"
    return (
        "this daemon is on loopback, with its own store and without keys" if guard == "auto" and not has_keys else None
    )


def log_guard(why_off: str | None) -> None:
    if why_off is None:
        log.info("address guard", guard="on")
    else:
        log.info("address guard", guard="off", reason=why_off)
