"""Access to the store, for commands that do not go through the API: the configuration, and the open store."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from later import log
from later.cli.groups import Extra
from later.config import Config, load
from later.core.clock import Clock
from later.core.errors import StoreDown
from later.embedded import EmbeddedError, EmbeddedStore, answers_ping, holds_store, socket_url
from later.store.open import Store, open_store
from later.store.settings import StoreSettings

OTEL = Extra("otel", ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"), "packages of OpenTelemetry")
"""The packages that a daemon needs that exports traces."""


def load_config(command: str, flags: Mapping[str, str | None]) -> Config:
    """Load the configuration and set up logging. Raises ConfigError."""
    config = load(command, flags, os.environ)
    if config.otlp is not None:
        OTEL.check(f"later {command} --otlp")
    if not config.runs_store and config.data_given:
        config = replace(config, store_url=socket_url(config.data))
    log.setup(config.log_format, config.log_level)
    return config


def this_user() -> str:
    """Return who runs this command, as an audit event names them: `cli:<user>`."""
    uid = os.geteuid()
    try:
        return f"cli:{pwd.getpwuid(uid).pw_name}"
    except KeyError:  # containers often have no account for their user
        return f"cli:{uid}"


def run_with_store(config: Config, work: Callable[[Store], Awaitable[int]]) -> int:
    """Open the store, run `work` with it, and return the exit code.

    Raises:
        EmbeddedError: there is no store in --data.
        StoreMismatch: this version of later cannot use the store's data.
        StoreDown: the store cannot be reached.
    """
    _check_data(config)
    return asyncio.run(_work_with_store(config, work))


def run_with_own_store(config: Config, work: Callable[[Store], Awaitable[int]]) -> int:
    """Do as `run_with_store`; if --data names an embedded store that nobody runs, run it meanwhile.

    Raises:
        EmbeddedError: there is no store, or it cannot be run.
        StoreMismatch: this version of later cannot use the store's data.
        StoreDown: the store cannot be reached.
    """
    _check_data(config)
    return run_with_new_store(config, work)


def run_with_new_store(config: Config, work: Callable[[Store], Awaitable[int]]) -> int:
    """Do as `run_with_own_store`; if there is no store in --data, make one. Raises: the same."""

    async def run() -> int:
        if not config.data_given or await answers_ping(config.data):
            return await _work_with_store(config, work)
        embedded = EmbeddedStore(config.data)
        await embedded.start()
        try:
            return await _work_with_store(config, work)
        finally:
            await embedded.stop()

    return asyncio.run(run())


def _check_data(config: Config) -> None:
    """Raise EmbeddedError if --data names a directory without a store: it is mistyped."""
    if config.data_given and not holds_store(config.data):
        raise EmbeddedError(f"there is no store in {config.data}: --data names the directory of a `later up`")


async def _work_with_store(config: Config, work: Callable[[Store], Awaitable[int]]) -> int:
    settings = StoreSettings(url=config.store_url, prefix=config.prefix, timeout_s=config.store_timeout_ms / 1000)

    try:
        clock = Clock(time.monotonic, time.time)
        async with aclosing(await open_store(settings, clock, config.policy, config.shards)) as store:
            try:
                return await work(store)
            finally:
                await store.audit_trail.flush_or_log()
    except StoreDown as error:
        # By default `later up` keeps its store in a directory that other commands use only with --data.
        is_data_forgotten = not config.redis_given and not config.data_given and (config.data / "store.sock").exists()
        hint = f" (for the store of `later up`: --data {config.data})" if is_data_forgotten else ""
        raise StoreDown(f"{error}{hint}") from error
