"""The daemon's configuration: one frozen, checked object, read from flags, the environment and a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from later.address_types import (
    Address,
    collector_url,
    default_shards,
    events_url,
    http_url,
    mask_url,
    proxy_url,
    store_url,
)
from later.core.api_keys import ApiKey
from later.core.callback_url import check_callback, check_host_and_port
from later.core.durability import Durability
from later.core.errors import ConfigError, Refused
from later.core.policy import Policy
from later.core.receiver_tls import ReceiverTls, parse_receivers
from later.core.signing import MASTER_PREFIX
from later.option_table import API_COMMANDS, OPTIONS, WORKER_COMMANDS, Option
from later.option_types import OptionType, key_file

DEFAULT_FILE = "later.toml"
RECEIVERS = "receivers"
"""The only table of the file."""
DEFAULT_DURABILITY_TIMEOUT_MS = 1_000
DEFAULT_LEASE_MARGIN_MS = 15_000
"""The time by which a lease exceeds a delivery's deadline by default: enough to settle even if the store is slow."""
MIN_LEASE_MARGIN_MS = 500
"""With less, a claim could arrive with less of its lease left than the deadline, and would never be sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The value of every option, checked. Names that end in `_ms` are in milliseconds."""

    command: str
    """The command that it is for: `up`, `worker`, `doctor`."""
    store_url: str = field(repr=False)  # it may contain a password
    redis_given: bool
    """True if --redis was given. Otherwise `up` runs its own store in `data`."""
    data: Path
    data_given: bool
    """True if --data was given and --redis does not take precedence over it."""
    listen: Address
    auth: str
    """`auto`, `keys` or `off`: whether calls need a key."""
    root_key_file: Path | None
    root_key: ApiKey | None
    """The key that is in no store, as its digest; None until it is read."""
    allow_hosts: frozenset[str]
    """Names under which the HTTP server may be called, besides IP addresses and `localhost`."""
    allow_origins: frozenset[str]
    health: Address | None
    health_given: bool
    """True if --health was given. Otherwise a worker whose default address is in use runs without it."""
    idle_ms: int
    connections: int | None
    """Most connections of clients per process; None: as many as the descriptors allow."""
    waiters: int | None
    keep_failures: int
    """Most claims that wait for tasks, per process; None: half as many as there may be connections."""
    tls_cert: Path | None
    tls_key: Path | None
    behind_proxy: bool
    """True if a proxy before the HTTP server does TLS."""
    base_path: str
    """The path in front of all others, where a proxy puts one: `/later`; otherwise empty."""
    console: str
    """`on`, `off` or `readonly`, as the option says; `console_mode` is what comes of it."""
    processes: int
    """`auto` is already resolved to a number."""
    concurrency: int
    tick_ms: int
    lease_ms: int
    policy: Policy
    """The policy of topics for which neither the topic nor its namespace sets another."""
    shards: int
    prefix: str
    store_timeout_ms: int
    durability_timeout_ms: int
    settle_durability: Durability
    store_offers: str
    """`auto`, or the level that each answer of the store has reached."""
    history: bool
    http_client: str
    proxy: str | None = field(repr=False)  # it may contain a password
    guard: str
    guard_allow: frozenset[str]
    guard_deny: frozenset[str]
    https_only: bool
    signing_key: str | None = field(repr=False)
    """The file of the signing key, or the key itself."""
    ca: str | None
    receivers: Mapping[str, ReceiverTls]
    """The table `receivers` of the file."""
    events: str | None = field(repr=False)  # its query may be a secret
    """The URL that operator events are sent to."""
    drain_ms: int
    policy_grace_ms: int
    max_body: int
    """Bytes."""
    max_pending_writes: int
    trace_context: str
    """`keep` or `off`: whether tasks keep the trace contexts of the requests that create them."""
    otlp: str | None
    """The URL of the collector of traces."""
    trace_parent: str
    """`link` or `child`: how the span of a delivery belongs to that of its create."""
    trace_sample: float
    """The share of the tasks without a trace context that are traced, 0 to 1."""
    access_log: str
    """`off`, `errors` or `all`: which HTTP requests are logged."""
    log_format: str
    log_level: str
    url: str
    url_given: bool
    """True if --url was given. Otherwise an application may know another."""
    key_file: str | None
    wait_ms: int

    @property
    def keeps_history(self) -> bool:
        """False also for `later dev`: each move of its clock visits every key that has a TTL."""
        return self.history and not self.moves_clock

    @property
    def runs_api(self) -> bool:
        return self.command in API_COMMANDS

    @property
    def runs_worker(self) -> bool:
        return self.command in WORKER_COMMANDS

    @property
    def runs_store(self) -> bool:
        """True if the daemon runs an embedded store itself."""
        return self.moves_clock or (self.command == "up" and not self.redis_given)

    @property
    def moves_clock(self) -> bool:
        """True for `later dev`: callers may move the clock, of a store that nothing else uses."""
        return self.command == "dev"

    @property
    def http_address(self) -> Address | None:
        """The address of a daemon's HTTP server: the API's, or that of a worker's health endpoints."""
        return self.listen if self.runs_api else self.health

    @property
    def console_mode(self) -> str:
        """`on`, `off` or `readonly`. Without keys it is off where others could open it."""
        is_open = self.auth == "off" and not self.listen.is_loopback
        return "off" if is_open or not self.runs_api else self.console

    @property
    def shown_store_url(self) -> str:
        """The store's URL without its secrets."""
        return mask_url(self.store_url)

    @property
    def shown_proxy(self) -> str | None:
        """The proxy's URL without its secrets."""
        return None if self.proxy is None else mask_url(self.proxy)


_BY_KEY = {option.key: option for option in OPTIONS}

_TOML_TYPES = (
    (bool, "a boolean"),  # before int: a bool is an int, too
    (int, "an integer"),
    (float, "a number"),
    (str, "a string"),
    (list, "an array"),
    (dict, "a table"),
)


class _Setting(NamedTuple):
    """An option's text, and its source: `precedence` 0 is the command line, 1 the environment, 2 the file.

    `origin` names the source in an error message.
    """

    text: str
    precedence: int
    origin: str


def load(command: str, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Config:
    """Return the command's configuration. The first value counts of: flag, environment, file, default.

    Only the command's own options are read; the others have their defaults. So a daemon's environment, or a wrong value
    in it, does not concern a command that calls its API.

    `flags` maps parameter names (`store_timeout`), and `config`, to the text given, or to None.

    Raises:
        ConfigError: a value is wrong; the text names the option, the value and what the option takes.
    """
    settings, receivers = _read_file(command, flags.get("config") or environ.get("LATER_CONFIG") or None)
    for option in OPTIONS:
        if command not in option.commands:
            continue
        if environ.get(option.variable):
            settings[option.key] = _Setting(environ[option.variable], 1, f" ({option.variable})")
        flag = flags.get(option.key)
        if flag is not None:
            settings[option.key] = _Setting(flag, 0, "")
    _refuse_password_on_command_line(settings.get("proxy"))
    _refuse_key_on_command_line(settings.get("signing_key"))
    values = {option.key: _read_option(option, settings.get(option.key)) for option in OPTIONS}
    policy = Policy(**{option.field: values[option.key] for option in OPTIONS if option.in_policy})
    others = {option.field: values[option.key] for option in OPTIONS if not option.in_policy}
    if others["lease_ms"] is None:
        others["lease_ms"] = policy.timeout_ms + DEFAULT_LEASE_MARGIN_MS
    if others["shards"] is None:
        others["shards"] = default_shards(others["store_url"])
    if others["durability_timeout_ms"] is None:
        others["durability_timeout_ms"] = min(DEFAULT_DURABILITY_TIMEOUT_MS, others["store_timeout_ms"] // 2)
    if others["trace_context"] is None:
        others["trace_context"] = "off" if others["otlp"] is None else "keep"
    redis, data = _choose_store(command, settings.get("redis"), settings.get("data"))
    others |= {"redis_given": redis, "data_given": data, "health_given": "health" in settings}
    others |= {"url_given": "url" in settings, "root_key": None}
    config = Config(command=command, policy=policy, receivers=receivers, **others)
    _check_combinations(config, settings)
    _check_events(config, settings)
    _check_durability(config, settings)
    return config


def _read_option(option: Option, setting: _Setting | None) -> Any:
    """Return the value of an option, or of its default; None if that depends on another option."""
    if setting is None:
        return None if option.default is None else option.type(option.default)
    try:
        return option.type(setting.text)
    except ValueError as error:
        raise ConfigError(f"{_format_option(option, setting)}{setting.origin}: expected {error}") from None


def _format_option(option: Option, setting: _Setting | None) -> str:
    """Return an option as it would stand on the command line, `--tick 0`, in one line and without secrets."""
    text = option.shown_default or option.default or "" if setting is None else setting.text
    if option.type in (store_url, http_url, proxy_url, events_url, collector_url):
        text = mask_url(text)
    if option.type is key_file and MASTER_PREFIX in text:
        text = "***"
    text = text if text.isprintable() else repr(text)
    text = text if len(text) <= 200 else text[:199] + "…"
    return f"--{option.name} {text or repr(text)}"


def _refuse_password_on_command_line(proxy: _Setting | None) -> None:
    """Raise ConfigError if --proxy itself has a user: every user of the machine can read command lines."""
    if proxy is not None and proxy.precedence == 0 and "@" in proxy.text:
        option = _format_option(_BY_KEY["proxy"], proxy)
        raise ConfigError(f"{option}: expected a URL without user:password@: use LATER_PROXY, or proxy in later.toml")


def _refuse_key_on_command_line(key: _Setting | None) -> None:
    """Raise ConfigError if --signing-key is the key itself: every user of the machine can read command lines."""
    if key is not None and key.precedence == 0 and MASTER_PREFIX in key.text:
        raise ConfigError("--signing-key ***: expected a file: the key itself is for LATER_SIGNING_KEY")


def _choose_store(command: str, redis: _Setting | None, data: _Setting | None) -> tuple[bool, bool]:
    """Return whether --redis names the store, and whether --data does: the one of higher precedence wins.

    For `up`, --redis always replaces the embedded store; --data says only where that store would be.
    """
    if redis is None or data is None:
        return redis is not None, data is not None
    if command == "up":
        return True, False
    if redis.precedence == data.precedence:
        raise ConfigError(f"--redis and --data{redis.origin}: expected one of them, got both")
    return redis.precedence < data.precedence, data.precedence < redis.precedence


def _check_combinations(config: Config, settings: Mapping[str, _Setting]) -> None:
    """Check the options that limit each other. Raises ConfigError."""

    def format_option(key: str) -> str:
        return _format_option(_BY_KEY[key], settings.get(key))

    policy = config.policy
    if config.guard == "off" and config.guard_deny:
        raise ConfigError(
            f"{format_option('guard_deny')}: expected --guard on, because --guard off refuses nothing; "
            "to refuse only these, say --guard on --guard-allow 0.0.0.0/0,::/0"
        )
    if config.moves_clock and not config.listen.is_loopback:
        raise ConfigError(
            f"{format_option('listen')}: expected a loopback address: `later dev` lets callers move its clock"
        )
    if config.lease_ms < policy.timeout_ms + MIN_LEASE_MARGIN_MS:
        raise ConfigError(f"{format_option('lease')}: expected at least 0.5 s more than {format_option('timeout')}")
    if 0 < policy.max_delay_ms < policy.default_delay_ms:
        raise ConfigError(f"{format_option('default_delay')}: expected at most {format_option('max_delay')}")
    if policy.retry_base_ms > policy.retry_cap_ms:
        raise ConfigError(f"{format_option('retry_base')}: expected at most {format_option('retry_cap')}")
    if config.proxy is not None:
        if config.http_client == "aiohttp" and config.proxy.lower().startswith("https:"):
            raise ConfigError(f"{format_option('http_client')}: expected own, because only that calls a proxy by https")
        try:
            check_host_and_port(urlsplit(config.proxy).netloc.rpartition("@")[2])
        except ValueError as error:
            raise ConfigError(f"{format_option('proxy')}{settings['proxy'].origin}: {error}") from None


def _check_durability(config: Config, settings: Mapping[str, _Setting]) -> None:
    """Check that the store's answer is not given up while a write waits for its durability. Raises ConfigError."""
    if config.durability_timeout_ms >= config.store_timeout_ms:
        own, store = (
            _format_option(_BY_KEY[key], settings.get(key)) for key in ("durability_timeout", "store_timeout")
        )
        raise ConfigError(f"{own}: expected less than {store}")


def _check_events(config: Config, settings: Mapping[str, _Setting]) -> None:
    """Raise ConfigError if no receiver can have the URL of --events."""
    if config.events is None:
        return
    try:
        check_callback(config.events)
    except Refused:  # its text has the whole URL, which may have a secret
        option, origin = _format_option(_BY_KEY["events"], settings["events"]), settings["events"].origin
        raise ConfigError(f"{option}{origin}: expected a URL that a receiver can have") from None


def _read_file(command: str, name: str | None) -> tuple[dict[str, _Setting], dict[str, ReceiverTls]]:
    """Read the command's settings of a file, and its table of receivers. Raises ConfigError.

    Without a name, the file is ./later.toml if it exists.

    A key that is no command's option is refused: a misspelt one must not become a default.
    """
    file = name or DEFAULT_FILE
    table = _read_toml(file, is_named=name is not None)
    settings: dict[str, _Setting] = {}
    receivers = table.pop(RECEIVERS, {})
    for key, value in table.items():
        option = _BY_KEY.get(key.replace("-", "_"))
        if option is None:
            raise ConfigError(f"{file}: unknown option {key!r}")
        if command not in option.commands:
            continue
        if option.key in settings:
            raise ConfigError(f"{file}: {option.name} is given twice")
        try:
            settings[option.key] = _Setting(_flag_text(value, option.type), 2, f" ({file})")
        except ValueError as error:
            raise ConfigError(f"{file}: {key}: expected {error}") from None
    if command not in WORKER_COMMANDS:
        return settings, {}
    try:
        return settings, parse_receivers(receivers)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None


def _read_toml(file: str, *, is_named: bool) -> dict[str, Any]:
    """Return the content of a file; of one that was not named and does not exist, nothing. Raises ConfigError."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not is_named:
            return {}
        raise ConfigError(f"--config {file}: no such file") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"--config {file}: cannot be read: {reason}") from None


def _flag_text(value: object, type: OptionType) -> str:
    """Return a value of the file as it would stand on the command line.

    Raises:
        ValueError: the option does not take this TOML type; the text says which it takes.
    """
    actual = next((name for kind, name in _TOML_TYPES if isinstance(value, kind)), "a date or time")
    if actual not in type.toml_types and not (actual == "an integer" and "a number" in type.toml_types):
        raise ValueError(f"{' or '.join(type.toml_types)}, got {actual}")
    if isinstance(value, list):
        if not all(isinstance(item, str) for item in value):
            raise ValueError("only strings in the array")
        return ",".join(value)
    return format(Decimal(str(value)), "f") if isinstance(value, float) else str(value)
