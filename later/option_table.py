"""The table of options: the name, the type, the default and the help of each, and the commands that take it."""

from __future__ import annotations

from typing import NamedTuple

from later.address_types import (
    address,
    address_or_off,
    collector_url,
    events_url,
    host_names,
    http_url,
    origins,
    proxy_url,
    store_url,
)
from later.core.address_guard import parse_network, parse_rule
from later.core.durability import Durability
from later.core.past_failures import MAX_FAILURES
from later.core.policy import (
    MAX_CLAIM_LEASE_MS,
    MAX_LIMIT,
    MAX_TIMEOUT_MS,
    MIN_RATE,
    POLICY_FIELDS,
    Ack,
    DelayMode,
    Sign,
)
from later.core.validation import MAX_RETRY
from later.option_types import (
    DEFAULT_PREFIX,
    OptionType,
    base_path,
    body_size,
    choice,
    count_or_auto,
    duration,
    file_name,
    integer,
    key_file,
    many,
    path,
    path_or_none,
    prefix,
    rate,
    share,
    switch,
)

DEV = "dev"
"""The daemon with a clock to move: one process, on an embedded store."""
DAEMON_COMMANDS = frozenset({"up", "serve", "worker", DEV})
STORE_COMMANDS = DAEMON_COMMANDS | {"keys", "audit", "secrets", "check", "status", "doctor", "export", "import"}
MOVE = "move"
"""The command that opens two stores, which options of its own name."""
API_COMMANDS = frozenset({"up", "serve", DEV})
WORKER_COMMANDS = frozenset({"up", "worker", DEV})
GUARD_COMMANDS = DAEMON_COMMANDS | {"check"}
CLIENT_COMMANDS = frozenset({"create", "query", "delete"})
"""Commands that call the API. Those that are not named here have the options of `query`."""
CONNECTED_COMMANDS = CLIENT_COMMANDS | {"run"}
"""Commands that are told where the API is."""
LOGGING_COMMANDS = DAEMON_COMMANDS | {"run"}
HEALTH_CHECK = "healthy"
"""The command that asks the daemon that runs here whether it works."""
ALL_COMMANDS = STORE_COMMANDS | GUARD_COMMANDS | CONNECTED_COMMANDS | {HEALTH_CHECK, MOVE}


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


def _policy_option(
    field: str, type: OptionType, default: str, *, name: str = "", commands: frozenset[str] = DAEMON_COMMANDS
) -> Option:
    """Build the option that sets the daemon's value of a policy field."""
    option_name = name or field.replace("_", "-")
    return Option(
        option_name,
        POLICY_FIELDS[field].attribute,
        type,
        default,
        commands,
        POLICY_FIELDS[field].help,
        in_policy=True,
    )


OPTIONS = (
    Option("redis", "store_url", store_url, "redis://127.0.0.1:6379/0", STORE_COMMANDS - {DEV},
           "URL of the store: redis://, redis+sentinel://, redis+cluster:// or unix://. A password is safer in the "
           "environment."),
    Option("data", "data", path, "./later-data", STORE_COMMANDS, "Directory of the embedded store."),
    Option("listen", "listen", address, "127.0.0.1:8080", API_COMMANDS | {HEALTH_CHECK},
           "Address of the API; port 0: any free port."),
    Option("auth", "auth", choice("auto", "keys", "off"), "auto", DAEMON_COMMANDS,
           "Whether calls need a key; auto: unless it listens on loopback and the store has never had a key."),
    Option("root-key-file", "root_key_file", path_or_none, "none", DAEMON_COMMANDS,
           "File with a key that may do everything and is in no store; or set LATER_ROOT_KEY to the key itself."),
    Option("allow-host", "allow_hosts", host_names, "none", DAEMON_COMMANDS,
           "Name by which it may be called, besides IP addresses, localhost and the one it listens on; repeatable."),
    Option("allow-origin", "allow_origins", origins, "none", API_COMMANDS,
           "Origin of web pages that may call the API through a proxy that rewrites `Host`; repeatable."),
    Option("health", "health", address_or_off, "127.0.0.1:8081", frozenset({"worker", HEALTH_CHECK}),
           "Address where a worker serves /livez, /readyz and /metrics; `off` disables it."),
    Option("idle", "idle_ms", duration(1_000), "75s", DAEMON_COMMANDS,
           "How long a client's connection is kept without a request; above what a balancer before it keeps them."),
    Option("connections", "connections", integer(1, 1_000_000), None, DAEMON_COMMANDS,
           "Most connections of clients, per process; one more is closed at once.",
           "10000, or what open files leave"),
    Option("waiters", "waiters", integer(1, 1_000_000), None, API_COMMANDS,
           "Most claims that may wait for tasks, per process; one more is answered 503.", "half of --connections"),
    Option("tls-cert", "tls_cert", path_or_none, None, DAEMON_COMMANDS | {HEALTH_CHECK},
           "Certificate chain (PEM) with which the HTTP server does TLS. SIGHUP lets it read the file again.", "none"),
    Option("tls-key", "tls_key", path_or_none, None, DAEMON_COMMANDS, "Its key (PEM).", "in the certificate's file"),
    Option("behind-proxy", "behind_proxy", switch, "off", DAEMON_COMMANDS,
           "A proxy before the HTTP server does TLS: do not warn that keys travel in clear."),
    Option("base-path", "base_path", base_path, "/", API_COMMANDS,
           "Path below which a proxy shows it, such as /later; it answers with and without it in front."),
    Option("console", "console", choice("on", "off", "readonly"), "on", API_COMMANDS,
           "Pages for people at /console/; readonly: they change nothing. Off beyond loopback with --auth off."),
    Option("processes", "processes", count_or_auto(256), "1", DAEMON_COMMANDS - {DEV},
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
    Option("keep-failures", "keep_failures", integer(1, MAX_FAILURES), str(MAX_FAILURES), DAEMON_COMMANDS,
           "Failures kept of a task: the last, and those before it with 80 characters of their messages."),
    _policy_option("sign", choice(*Sign), "namespace", commands=DAEMON_COMMANDS | {"check"}),
    _policy_option("claim_lease", duration(1_000, MAX_CLAIM_LEASE_MS), "30s"),
    _policy_option("max_claims", integer(0, MAX_LIMIT), "0"),
    Option("signing-key", "signing_key", key_file, "none", DAEMON_COMMANDS | {"check", "doctor", "secrets"},
           "File of the keys from which signing secrets are derived; LATER_SIGNING_KEY takes their text, too.",
           "signing.key in the directory of an embedded store"),
    Option("shards", "shards", integer(1, 16_384), None, DAEMON_COMMANDS | {"import"},
           "Shards that the data is split into, fixed once the store holds data; 16 to 1024 in a cluster.",
           "1; in a cluster 256"),
    Option("prefix", "prefix", prefix, DEFAULT_PREFIX, STORE_COMMANDS - {DEV}, "Prefix of every key in the store."),
    _policy_option("remember", duration(0), "7d"),
    _policy_option("durability", choice(*Durability), "primary"),
    Option("durability-timeout", "durability_timeout_ms", duration(10, 60_000), None, DAEMON_COMMANDS,
           "How long a write waits for its durability; less than --store-timeout.",
           "1s, or half of --store-timeout where that is less"),
    Option("settle-durability", "settle_durability", choice(*Durability), "primary", WORKER_COMMANDS,
           "Where the end of a delivery must be before its slot is free; one that is lost is delivered again."),
    Option("store-offers", "store_offers", choice("auto", *Durability), "auto", DAEMON_COMMANDS,
           "Highest durability of the store's own answers; `auto`: as its configuration says, where it may be read."),
    Option("store-timeout", "store_timeout_ms", duration(100, 60_000), "2s", STORE_COMMANDS | {MOVE},
           "How long to wait for the store's answer."),
    Option("history", "history", switch, "on", DAEMON_COMMANDS - {DEV},
           "Keep in the store what happened in each ten seconds of two hours, and each five minutes of eight days."),
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
    Option("ca", "ca", file_name, "none", WORKER_COMMANDS | CONNECTED_COMMANDS | {"check"},
           "File of authorities' certificates (PEM) to trust besides the machine's, in calls of https URLs."),
    Option("events", "events", events_url, "none", DAEMON_COMMANDS,
           "URL that is told of dead tasks, late and paused topics, and a store that is nearly full; `none`: no URL."),
    Option("drain", "drain_ms", duration(0), "30s", DAEMON_COMMANDS,
           "How long a stop waits for deliveries and requests in progress."),
    Option("policy-grace", "policy_grace_ms", duration(0), "30s", DAEMON_COMMANDS,
           "How long policies and keys that were read last are good while their node of a cluster is away; 0: not."),
    Option("max-body", "max_body", body_size, "1MiB", API_COMMANDS,
           "Largest request body, in bytes or with KiB or MiB; at most 16MiB."),
    Option("max-pending-writes", "max_pending_writes", integer(1, 10_000_000), "10000", API_COMMANDS,
           "Most tasks that may wait for a slow store, per process; beyond that, requests are answered 503."),
    Option("trace-context", "trace_context", choice("keep", "off"), None, API_COMMANDS,
           "Whether a task keeps the sampled `traceparent` of the request that creates it, for its deliveries.",
           "off; keep with --otlp"),
    Option("otlp", "otlp", collector_url, "none", DAEMON_COMMANDS,
           "URL of a collector that gets traces by OTLP over HTTP, http(s)://HOST:4318; needs the extra `otel`."),
    Option("trace-parent", "trace_parent", choice("link", "child"), "link", WORKER_COMMANDS,
           "The span of a delivery begins a trace, with a link to the span of the create, or is a child of that."),
    Option("trace-sample", "trace_sample", share, "1", DAEMON_COMMANDS,
           "Share of the tasks without a trace context that are traced; the others go by the sampled flag of theirs."),
    Option("access-log", "access_log", choice("off", "errors", "all"), "errors", DAEMON_COMMANDS,
           "Which HTTP requests are logged; errors: at most one a second of each status, and neither 404 nor 409."),
    Option("log-format", "log_format", choice("console", "json"), "console", LOGGING_COMMANDS,
           "Format of the log: console for people, json for machines."),
    Option("log-level", "log_level", choice("debug", "info", "warning", "error"), "info", LOGGING_COMMANDS,
           "Lowest level that is logged; events of single tasks are at debug."),
    Option("url", "url", http_url, "http://127.0.0.1:8080", CONNECTED_COMMANDS, "URL of later's API."),
    Option("key-file", "key_file", file_name, "none", CONNECTED_COMMANDS,
           "Regular file with the API key on its first line, no pipe; the key itself can be in LATER_KEY."),
    Option("wait", "wait_ms", duration(100, 3_600_000), "30s", CLIENT_COMMANDS,
           "How long to wait for the API's answer."),
)  # fmt: skip
