"""What the operator decides: one frozen, checked object, and the table of options that it is made from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from later.core.errors import ConfigError
from later.core.policy import MAX_LIMIT, MAX_TIMEOUT_MS, MIN_RATE, Ack, DelayMode, Policy
from later.core.validation import MAX_RETRY
from later.option_types import (
    Address,
    Reader,
    address,
    address_or_off,
    choice,
    count_or_auto,
    duration,
    fraction,
    http_url,
    integer,
    masked,
    path,
    prefix,
    rate,
    size,
    store_url,
    switch,
)

DAEMONS = frozenset({"up", "serve", "worker"})
STORE = DAEMONS | {"status", "doctor"}
API = frozenset({"up", "serve"})
WORK = frozenset({"up", "worker"})
CALLS = frozenset({"create", "query", "delete"})
ALL = STORE | CALLS

DEFAULT_FILE = "later.toml"
LEASE_OVER_TIMEOUT_MS = 15_000
"""What a lease is longer than a delivery's deadline, by default: time to settle, also past a store's hiccup."""
LEAST_OVER_TIMEOUT_MS = 500
"""With less, a claim may come back with no more than the deadline left of its lease: then nothing would be sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Every option's value, checked; `_ms` are milliseconds."""

    store_url: str = field(repr=False)  # it may hold a password
    redis_given: bool
    """Was --redis given? Where it was not, `up` runs its own store in `data`."""
    data: Path
    data_given: bool
    """Was --data given, and no nearer --redis?"""
    listen: Address
    health: Address | None
    health_given: bool
    """Was --health given? Where it was not, a worker whose default address is taken goes on without it."""
    processes: int
    """`auto` is counted by now."""
    concurrency: int
    tick_ms: int
    timeout_ms: int
    lease_ms: int
    retry: int
    retry_base_ms: int
    retry_cap_ms: int
    retry_jitter: float
    default_delay_ms: int
    max_delay_ms: int
    """0: no limit, here and in the limits below."""
    delay_mode: str
    delays: bool
    ttl_ms: int
    ack: str
    topic_rate: float
    topic_concurrency: int
    ramp_ms: int
    dead_keep_ms: int
    shards: int
    prefix: str
    remember_ms: int
    store_timeout_ms: int
    drain_ms: int
    max_body: int
    """Bytes."""
    max_pending_writes: int
    log_format: str
    log_level: str
    url: str
    wait_ms: int

    @property
    def policy(self) -> Policy:
        """What applies to a topic where neither it nor its namespace says otherwise."""
        return Policy(
            default_delay_ms=self.default_delay_ms,
            max_delay_ms=self.max_delay_ms,
            delay_mode=DelayMode(self.delay_mode),
            delays=self.delays,
            ttl_ms=self.ttl_ms,
            timeout_ms=self.timeout_ms,
            retry=self.retry,
            retry_base_ms=self.retry_base_ms,
            retry_cap_ms=self.retry_cap_ms,
            retry_jitter=self.retry_jitter,
            ack=Ack(self.ack),
            rate=self.topic_rate,
            concurrency=self.topic_concurrency,
            ramp_ms=self.ramp_ms,
            dead_keep_ms=self.dead_keep_ms,
        )

    @property
    def shown_store_url(self) -> str:
        """The store's address without its secrets."""
        return masked(self.store_url)


class Option(NamedTuple):
    """One line of the table. `default` is None where it follows from another option; `shown` says it then."""

    name: str
    field: str
    read: Reader
    default: str | None
    commands: frozenset[str]
    help: str
    shown: str = ""

    @property
    def variable(self) -> str:
        return "LATER_" + self.key.upper()

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


OPTIONS = (
    Option("redis", "store_url", store_url, "redis://127.0.0.1:6379/0", STORE,
           "The store: a redis://, rediss:// or unix:// URL. A password is better put in the environment."),
    Option("data", "data", path, "./later-data", STORE, "The directory of the embedded store."),
    Option("listen", "listen", address, "127.0.0.1:8080", API, "Where the API answers; port 0 takes any that is free."),
    Option("health", "health", address_or_off, "127.0.0.1:8081", frozenset({"worker"}),
           "Where a worker answers /livez, /readyz and /metrics; `off` for nowhere."),
    Option("processes", "processes", count_or_auto(256), "1", DAEMONS,
           "Processes that share the work and the port, each on a core; `auto`: one for each core."),
    Option("concurrency", "concurrency", integer(1, 100_000), "256", WORK, "Deliveries under way, per process."),
    Option("tick", "tick_ms", duration(10), "0.1s", WORK, "How often, at least, the store is looked at for due tasks."),
    Option("timeout", "timeout_ms", duration(1_000, MAX_TIMEOUT_MS), "15s", DAEMONS,
           "A delivery's deadline, from name lookup to the last byte of the answer; at most 120s."),
    Option("lease", "lease_ms", duration(1_000), None, WORK,
           "How long a task in flight is left alone before it is delivered again.", "timeout + 15s"),
    Option("retry", "retry", integer(0, MAX_RETRY), "3", DAEMONS, "Tries after the first, for tasks that do not say."),
    Option("retry-base", "retry_base_ms", duration(10), "10s", DAEMONS,
           "The pause after a first failure; it doubles with each further one."),
    Option("retry-cap", "retry_cap_ms", duration(10), "3600s", DAEMONS, "The longest pause between two tries."),
    Option("retry-jitter", "retry_jitter", fraction, "0", DAEMONS,
           "By up to what share of itself, 0 to 1, a pause is lengthened at random."),
    Option("default-delay", "default_delay_ms", duration(0), "0s", DAEMONS,
           "The delay of tasks that name neither a delay nor a time."),
    Option("max-delay", "max_delay_ms", duration(0), "0s", DAEMONS,
           "The longest delay that a task may ask for; 0: no limit."),
    Option("delay-mode", "delay_mode", choice(*DelayMode), "honor", DAEMONS,
           "honor: a task's own delay before the default; queue: where the default is 0, it is ignored."),
    Option("delays", "delays", switch, "on", DAEMONS, "off refuses tasks that are not due at once."),
    Option("ttl", "ttl_ms", duration(0), "0s", DAEMONS,
           "How old a task may get before it is done, for tasks that do not say; 0: no limit."),
    Option("ack", "ack", choice(*Ack), "auto", DAEMONS,
           "How receivers say that they are done: by a code where there is one, by code alone, or by status."),
    Option("topic-rate", "topic_rate", rate(MIN_RATE, MAX_LIMIT), "0", DAEMONS,
           "Deliveries a second that each topic may begin, over all instances; 0: no limit."),
    Option("topic-concurrency", "topic_concurrency", integer(0, MAX_LIMIT), "0", DAEMONS,
           "Deliveries of each topic that may be under way, over all instances; 0: no limit."),
    Option("ramp", "ramp_ms", duration(0), "10s", DAEMONS,
           "How long a topic takes back to full speed after a pause, a wait or a raised limit; 0: no time."),
    Option("dead-keep", "dead_keep_ms", duration(0), "30d", DAEMONS, "How long dead tasks are kept."),
    Option("shards", "shards", integer(1, 16_384), "1", DAEMONS,
           "Parts that the store's data is laid out in; fixed once there is data. 64 or more for a cluster."),
    Option("prefix", "prefix", prefix, "later", STORE, "What the names of all keys in the store begin with."),
    Option("remember", "remember_ms", duration(0), "7d", DAEMONS,
           "How long an id of the caller's own is remembered after its task has ended."),
    Option("store-timeout", "store_timeout_ms", duration(100, 60_000), "2s", STORE,
           "How long the store may take to answer."),
    Option("drain", "drain_ms", duration(0), "30s", DAEMONS, "How long a stop waits for what is under way."),
    Option("max-body", "max_body", size(1024, 16 * 1024 * 1024), "1MiB", API,
           "The largest request body: bytes, or KiB, MiB; at most 16MiB."),
    Option("max-pending-writes", "max_pending_writes", integer(1, 10_000_000), "10000", API,
           "How many tasks may wait for a slow store; then requests are answered 503. Per process."),
    Option("log-format", "log_format", choice("console", "json"), "console", DAEMONS,
           "console for a person, json for a machine."),
    Option("log-level", "log_level", choice("debug", "info", "warning", "error"), "info", DAEMONS,
           "debug, info, warning or error; what happens to single tasks is debug."),
    Option("url", "url", http_url, "http://127.0.0.1:8080", CALLS, "Where later's API answers."),
    Option("wait", "wait_ms", duration(100, 3_600_000), "30s", CALLS, "How long an answer may take."),
)  # fmt: skip

_KINDS = (
    (bool, "a boolean"),  # before int: it is one
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "a table"),
)

_BY_KEY = {option.key: option for option in OPTIONS}


class _Given(NamedTuple):
    """A value that somebody gave, and where; the smaller `distance` is the nearer."""

    text: str
    distance: int
    origin: str


def load(command: str, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Config:
    """The command's configuration: flag, else environment, else file, else default.

    `flags` maps options as parameters are named (`store_timeout`), and `config`, to what was given, None for nothing.

    Raises:
        ConfigError: with the option's name and value, and what it takes.
    """
    given = _file_values(flags.get("config") or environ.get("LATER_CONFIG") or None)
    for option in OPTIONS:
        if environ.get(option.variable):
            given[option.key] = _Given(environ[option.variable], 1, f" ({option.variable})")
        flag = flags.get(option.key)
        if flag is not None:
            given[option.key] = _Given(flag, 0, "")
    values = {option.field: _value(option, given.get(option.key)) for option in OPTIONS}
    if values["lease_ms"] is None:
        values["lease_ms"] = values["timeout_ms"] + LEASE_OVER_TIMEOUT_MS
    redis, data = _store_given(command, given.get("redis"), given.get("data"))
    config = Config(redis_given=redis, data_given=data, health_given="health" in given, **values)
    _check_together(config, given)
    return config


def _value(option: Option, given: _Given | None) -> Any:
    if given is None:
        return None if option.default is None else option.read(option.default)
    try:
        return option.read(given.text)
    except ValueError as error:
        raise ConfigError(f"{_shown(option, given)}{given.origin}: expected {error}") from None


def _shown(option: Option, given: _Given | None) -> str:
    """`--tick 0`, on one line and without secrets."""
    text = option.shown or option.default or "" if given is None else given.text
    if option.read in (store_url, http_url):
        text = masked(text)
    text = text if text.isprintable() else repr(text)
    text = text if len(text) <= 200 else text[:199] + "…"
    return f"--{option.name} {text or repr(text)}"


def _store_given(command: str, redis: _Given | None, data: _Given | None) -> tuple[bool, bool]:
    """Which of --redis and --data names the store: the nearer one, as with any option.

    For `up`, --redis from anywhere replaces the embedded store: where that would be is no contradiction.
    """
    if redis is None or data is None:
        return redis is not None, data is not None
    if command == "up":
        return True, False
    if redis.distance == data.distance:
        raise ConfigError(f"--redis and --data{redis.origin}: expected one of them, got both")
    return redis.distance < data.distance, data.distance < redis.distance


def _check_together(config: Config, given: Mapping[str, _Given]) -> None:
    def shown(key: str) -> str:
        return _shown(_BY_KEY[key], given.get(key))

    if config.lease_ms < config.timeout_ms + LEAST_OVER_TIMEOUT_MS:
        raise ConfigError(f"{shown('lease')}: expected at least 0.5 s more than {shown('timeout')}")
    if 0 < config.max_delay_ms < config.default_delay_ms:
        raise ConfigError(f"{shown('default_delay')}: expected at most {shown('max_delay')}")
    if config.retry_base_ms > config.retry_cap_ms:
        raise ConfigError(f"{shown('retry_base')}: expected at most {shown('retry_cap')}")


def _file_values(name: str | None) -> dict[str, _Given]:
    """The file's values; none where no file was named and there is no ./later.toml."""
    try:
        text = Path(name or DEFAULT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        if name is None:
            return {}
        raise ConfigError(f"--config {name}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"--config {name or DEFAULT_FILE}: it cannot be read: {reason}") from None
    return _parsed(name or DEFAULT_FILE, text)


def _parsed(file: str, text: str) -> dict[str, _Given]:
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    given: dict[str, _Given] = {}
    for key, value in table.items():
        option = _BY_KEY.get(key.replace("-", "_"))
        if option is None:
            raise ConfigError(f"{file}: {key!r} is no option")
        if option.key in given:
            raise ConfigError(f"{file}: {option.name} is given twice")
        given[option.key] = _Given(_text(file, key, option, value), 2, f" ({file})")
    return given


def _text(file: str, key: str, option: Option, value: object) -> str:
    """A value of the file as it would stand on the command line."""
    takes, kind = option.read.takes, _kind(value)
    if kind not in takes and not (kind == "an integer" and "a number" in takes):
        raise ConfigError(f"{file}: {key}: expected {' or '.join(takes)}, got {kind}")
    return format(Decimal(str(value)), "f") if isinstance(value, float) else str(value)


def _kind(value: object) -> str:
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return name
    return "a date or time"
