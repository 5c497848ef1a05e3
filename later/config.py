"""The daemon's configuration: one frozen, checked object, and the table of options that it is built from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from later.core.address_guard import parse_network, parse_rule
from later.core.api_keys import ApiKey
from later.core.callback_url import check_host_and_port
from later.core.errors import ConfigError
from later.core.policy import MAX_LIMIT, MAX_TIMEOUT_MS, MIN_RATE, POLICY_FIELDS, Ack, DelayMode, Policy, Sign
from later.core.receiver_tls import ReceiverTls, parse_receivers
from later.core.signing import MASTER_PREFIX
from later.core.validation import MAX_RETRY
from later.option_types import (
    DEFAULT_PREFIX,
    Address,
    OptionType,
    address,
    address_or_off,
    body_size,
    choice,
    count_or_auto,
    duration,
    file_name,
    host_names,
    http_url,
    integer,
    key_file,
    many,
    mask_url,
    origins,
    path,
    path_or_none,
    prefix,
    proxy_url,
    rate,
    share,
    store_url,
    switch,
)

DAEMON_COMMANDS = frozenset({"up", "serve", "worker"})
STORE_COMMANDS = DAEMON_COMMANDS | {"keys", "audit", "secrets", "status", "doctor"}
API_COMMANDS = frozenset({"up", "serve"})
WORKER_COMMANDS = frozenset({"up", "worker"})
GUARD_COMMANDS = DAEMON_COMMANDS | {"check"}
CLIENT_COMMANDS = frozenset({"create", "query", "delete"})
"""Commands that call the API. Those that are not named here have the options of `query`."""
ALL_COMMANDS = STORE_COMMANDS | GUARD_COMMANDS | CLIENT_COMMANDS

DEFAULT_FILE = "later.toml"
RECEIVERS = "receivers"
"""The only table of the file."""
DEFAULT_LEASE_MARGIN_MS = 15_000
"""The time by which a lease exceeds a delivery's deadline by default: enough to settle even if the store is slow."""
MIN_LEASE_MARGIN_MS = 500
"""With less, a claim could arrive with less of its lease left than the deadline, and would never be sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The value of every option, checked. Names that end in `_ms` are in milliseconds."""

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
    tls_cert: Path | None
    tls_key: Path | None
    behind_proxy: bool
    """True if a proxy before the HTTP server does TLS."""
    processes: int
    """`auto` is already resolved to a number."""
    concurrency: int
    tick_ms: int
    lease_ms: int
    policy: Policy
    """The policy of topics for which neither the topic nor its namespace sets another."""
    shards: int
    prefix: str
    remember_ms: int
    store_timeout_ms: int
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
    drain_ms: int
    max_body: int
    """Bytes."""
    max_pending_writes: int
    log_format: str
    log_level: str
    url: str
    key_file: str | None
    wait_ms: int

    @property
    def shown_store_url(self) -> str:
        """The store's URL without its secrets."""
        return mask_url(self.store_url)

    @property
    def shown_proxy(self) -> str | None:
        """The proxy's URL without its secrets."""
        return None if self.proxy is None else mask_url(self.proxy)


class Option(NamedTuple):
    """One row of the table of options.

    `field` is its attribute in `Config`, or in `Config.policy` if `in_policy`. `default` is None if it depends on
    another option; `shown_default` then describes it.
    """

    name: str
    field: str
    type: OptionType
    default: str | None
    commands: frozenset[str]
    help: str
    shown_default: str = ""
    in_policy: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets the option."""
        return "LATER_" + self.key.upper()

    @property
    def key(self) -> str:
        """The option's key in later.toml."""
        return self.name.replace("-", "_")


def _policy_option(field: str, type: OptionType, default: str, *, name: str = "") -> Option:
    """Build the option that sets the daemon's value of a policy field."""
    option_name = name or field.replace("_", "-")
    return Option(
        option_name,
        POLICY_FIELDS[field].attribute,
        type,
        default,
        DAEMON_COMMANDS,
        POLICY_FIELDS[field].help,
        in_policy=True,
    )


OPTIONS = (
    Option("redis", "store_url", store_url, "redis://127.0.0.1:6379/0", STORE_COMMANDS,
           "URL of the store: redis://, rediss:// or unix://. A password is safer in the environment."),
    Option("data", "data", path, "./later-data", STORE_COMMANDS, "Directory of the embedded store."),
    Option("listen", "listen", address, "127.0.0.1:8080", API_COMMANDS, "Address of the API; port 0: any free port."),
    Option("auth", "auth", choice("auto", "keys", "off"), "auto", DAEMON_COMMANDS,
           "Whether calls need a key; auto: unless it listens on loopback and the store has never had a key."),
    Option("root-key-file", "root_key_file", path_or_none, "none", DAEMON_COMMANDS,
           "File with a key that may do everything and is in no store; or set LATER_ROOT_KEY to the key itself."),
    Option("allow-host", "allow_hosts", host_names, "none", DAEMON_COMMANDS,
           "Name by which it may be called, besides IP addresses, localhost and the one it listens on; repeatable."),
    Option("allow-origin", "allow_origins", origins, "none", API_COMMANDS,
           "Origin of web pages that may call the API through a proxy that rewrites `Host`; repeatable."),
    Option("health", "health", address_or_off, "127.0.0.1:8081", frozenset({"worker"}),
           "Address where a worker serves /livez, /readyz and /metrics; `off` disables it."),
    Option("idle", "idle_ms", duration(1_000), "75s", DAEMON_COMMANDS,
           "How long a client's connection is kept without a request; above what a balancer before it keeps them."),
    Option("connections", "connections", integer(1, 1_000_000), None, DAEMON_COMMANDS,
           "Most connections of clients, per process; one more is closed at once.",
           "10000, or what open files leave"),
    Option("tls-cert", "tls_cert", path_or_none, None, DAEMON_COMMANDS,
           "Certificate chain (PEM) with which the HTTP server does TLS. SIGHUP lets it read the file again.", "none"),
    Option("tls-key", "tls_key", path_or_none, None, DAEMON_COMMANDS, "Its key (PEM).", "in the certificate's file"),
    Option("behind-proxy", "behind_proxy", switch, "off", DAEMON_COMMANDS,
           "A proxy before the HTTP server does TLS: do not warn that keys travel in clear."),
    Option("processes", "processes", count_or_auto(256), "1", DAEMON_COMMANDS,
           "Processes that share the work and the port; `auto`: one per CPU core."),
    Option("concurrency", "concurrency", integer(1, 100_000), "256", WORKER_COMMANDS,
           "Most deliveries in flight at a time, per process."),
    Option("tick", "tick_ms", duration(10), "0.1s", WORKER_COMMANDS,
           "Longest time between two checks of the store for due tasks."),
    _policy_option("timeout", duration(1_000, MAX_TIMEOUT_MS), "15s"),
    Option("lease", "lease_ms", duration(1_000), None, DAEMON_COMMANDS,
           "How long a worker may hold a task in flight; then the task is delivered again.", "timeout + 15s"),
    _policy_option("retry", integer(0, MAX_RETRY), "3"),
    _policy_option("retry_base", duration(10), "10s"),
    _policy_option("retry_cap", duration(10), "3600s"),
    _policy_option("retry_jitter", share, "0"),
    _policy_option("default_delay", duration(0), "0s"),
    _policy_option("max_delay", duration(0), "0s"),
    _policy_option("delay_mode", choice(*DelayMode), "honor"),
    _policy_option("delays", switch, "on"),
    _policy_option("ttl", duration(0), "0s"),
    _policy_option("ack", choice(*Ack), "auto"),
    _policy_option("rate", rate(MIN_RATE, MAX_LIMIT), "0", name="topic-rate"),
    _policy_option("concurrency", integer(0, MAX_LIMIT), "0", name="topic-concurrency"),
    _policy_option("ramp", duration(0), "10s"),
    _policy_option("dead_keep", duration(0), "30d"),
    _policy_option("sign", choice(*Sign), "namespace"),
    Option("signing-key", "signing_key", key_file, "none", DAEMON_COMMANDS | {"doctor", "secrets"},
           "File of the keys from which signing secrets are derived; LATER_SIGNING_KEY takes their text, too.",
           "signing.key in the directory of an embedded store"),
    Option("shards", "shards", integer(1, 16_384), "1", DAEMON_COMMANDS,
           "Shards that the data is split into, fixed once the store holds data; 64 or more for a cluster."),
    Option("prefix", "prefix", prefix, DEFAULT_PREFIX, STORE_COMMANDS, "Prefix of every key in the store."),
    Option("remember", "remember_ms", duration(0), "7d", DAEMON_COMMANDS,
           "How long an id chosen by the caller is remembered after its task has ended."),
    Option("store-timeout", "store_timeout_ms", duration(100, 60_000), "2s", STORE_COMMANDS,
           "How long to wait for the store's answer."),
    Option("http-client", "http_client", choice("own", "aiohttp"), "own", WORKER_COMMANDS,
           "HTTP client of the deliveries: later's own, or aiohttp's, which is slower, as a way around a fault."),
    Option("proxy", "proxy", proxy_url, "none", WORKER_COMMANDS | {"check"},
           "Forward proxy of all callbacks, http(s)://HOST:PORT. User and password are for LATER_PROXY or the file."),
    Option("guard", "guard", choice("auto", "on", "off"), "auto", GUARD_COMMANDS,
           "Refuse callbacks to private addresses; `auto`: not if `up` has its own store, loopback and no keys."),
    Option("guard-allow", "guard_allow", many(parse_rule, "LIST"), "none", GUARD_COMMANDS,
           "Networks, addresses, names and zones (*.internal) that callbacks may be to all the same; repeatable."),
    Option("guard-deny", "guard_deny", many(parse_network, "LIST"), "none", GUARD_COMMANDS,
           "Networks and addresses that callbacks may not be to, whatever --guard-allow says; repeatable."),
    Option("https-only", "https_only", switch, "off", GUARD_COMMANDS, "Refuse callbacks that are not https."),
    Option("ca", "ca", file_name, "none", WORKER_COMMANDS | CLIENT_COMMANDS,
           "File of authorities' certificates (PEM) to trust besides the machine's, in calls of https URLs."),
    Option("drain", "drain_ms", duration(0), "30s", DAEMON_COMMANDS,
           "How long a stop waits for deliveries and requests in progress."),
    Option("max-body", "max_body", body_size, "1MiB", API_COMMANDS,
           "Largest request body, in bytes or with KiB or MiB; at most 16MiB."),
    Option("max-pending-writes", "max_pending_writes", integer(1, 10_000_000), "10000", API_COMMANDS,
           "Most tasks that may wait for a slow store, per process; beyond that, requests are answered 503."),
    Option("log-format", "log_format", choice("console", "json"), "console", DAEMON_COMMANDS,
           "Format of the log: console for people, json for machines."),
    Option("log-level", "log_level", choice("debug", "info", "warning", "error"), "info", DAEMON_COMMANDS,
           "Lowest level that is logged; events of single tasks are at debug."),
    Option("url", "url", http_url, "http://127.0.0.1:8080", CLIENT_COMMANDS, "URL of later's API."),
    Option("key-file", "key_file", file_name, "none", CLIENT_COMMANDS,
           "File with the API key on its first line; the key itself can be in LATER_KEY."),
    Option("wait", "wait_ms", duration(100, 3_600_000), "30s", CLIENT_COMMANDS,
           "How long to wait for the API's answer."),
)  # fmt: skip

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
    redis, data = _choose_store(command, settings.get("redis"), settings.get("data"))
    others |= {"redis_given": redis, "data_given": data, "health_given": "health" in settings, "root_key": None}
    config = Config(policy=policy, receivers=receivers, **others)
    _check_combinations(config, settings)
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
    if option.type in (store_url, http_url, proxy_url):
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
