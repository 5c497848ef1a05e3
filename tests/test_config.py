"""The configuration: sources of values, their precedence, and error messages."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from later.address_types import Address, mask_url
from later.config import Config, load
from later.core.durability import Durability
from later.core.errors import ConfigError
from later.core.policy import Ack, DelayMode, Policy
from later.core.receiver_tls import ReceiverTls
from later.option_table import ALL_COMMANDS, OPTIONS, Option
from tests.cases import each_case

NAMES = [option.name for option in OPTIONS]

SAMPLES: dict[str, tuple[tuple[str, Any], ...]] = {
    "redis": (
        ("redis://a:1/0", "redis://a:1/0"),
        ("rediss://b:2/1", "rediss://b:2/1"),
        ("unix:///c", "unix:///c"),
    ),
    "data": (("/a", Path("/a")), ("b", Path("b")), ("./c", Path("./c"))),
    "listen": (("a:1", Address("a", 1)), ("[::1]:0", Address("::1", 0)), ("1.2.3.4:65535", Address("1.2.3.4", 65535))),
    "auth": (("keys", "keys"), ("off", "off"), ("keys", "keys")),
    "root-key-file": (("/a", Path("/a")), ("b", Path("b")), ("./c", Path("./c"))),
    "allow-host": (
        ("a", frozenset({"a"})),
        ("B.internal.,c_d", frozenset({"b.internal", "c_d"})),
        ("none", frozenset()),
    ),
    "allow-origin": (
        ("https://a", frozenset({"https://a"})),
        ("HTTPS://A:443, http://b:8080", frozenset({"https://a", "http://b:8080"})),
        ("http://[::1]:80", frozenset({"http://[::1]"})),
    ),
    "health": (("a:1", Address("a", 1)), ("off", None), ("[::]:80", Address("::", 80))),
    "idle": (("1", 1000), ("10m", 600_000), ("620s", 620_000)),
    "connections": (("1", 1), ("1000000", 1_000_000), ("50", 50)),
    "waiters": (("1", 1), ("1000000", 1_000_000), ("50", 50)),
    "tls-cert": (("/a", Path("/a")), ("b.pem", Path("b.pem")), ("./c", Path("c"))),
    "tls-key": (("/a", Path("/a")), ("b.pem", Path("b.pem")), ("./c", Path("c"))),
    "behind-proxy": (("on", True), ("off", False), ("on", True)),
    "base-path": (("/later", "/later"), ("/a/b.c", "/a/b.c"), ("/~x", "/~x")),
    "console": (("off", "off"), ("readonly", "readonly"), ("off", "off")),
    "processes": (("1", 1), ("256", 256), ("2", 2)),
    "concurrency": (("1", 1), ("100000", 100_000), ("7", 7)),
    "tick": (("0.01", 10), ("10ms", 10), ("1m", 60_000)),
    "timeout": (("1", 1000), ("20s", 20_000), ("2000ms", 2000)),
    "lease": (("16", 16_000), ("1h", 3_600_000), ("1d", 86_400_000)),
    "retry": (("0", 0), ("1000", 1000), ("12", 12)),
    "retry-base": (("0.5", 500), ("1h", 3_600_000), (".25s", 250)),
    "retry-cap": (("10", 10_000), ("2h", 7_200_000), ("0.5d", 43_200_000)),
    "retry-jitter": (("0.5", 0.5), ("1", 1.0), (".1", 0.1)),
    "default-delay": (("0", 0), ("1h", 3_600_000), ("0.5", 500)),
    "max-delay": (("0", 0), ("7d", 604_800_000), ("900", 900_000)),
    "delay-mode": (("honor", "honor"), ("queue", "queue"), ("honor", "honor")),
    "delays": (("on", True), ("off", False), ("on", True)),
    "ttl": (("0", 0), ("1d", 86_400_000), ("30s", 30_000)),
    "ack": (("code", "code"), ("status", "status"), ("auto", "auto")),
    "topic-rate": (("0", 0), ("0.5", 0.5), ("1000", 1000.0)),
    "topic-concurrency": (("0", 0), ("1", 1), ("1000000", 1_000_000)),
    "ramp": (("0", 0), ("1m", 60_000), ("0.5", 500)),
    "dead-keep": (("0", 0), ("1d", 86_400_000), ("90m", 5_400_000)),
    "keep-failures": (("1", 1), ("5", 5), ("2", 2)),
    "sign": (("off", "off"), ("topic", "topic"), ("origin", "origin")),
    "claim-lease": (("1s", 1000), ("12h", 43_200_000), ("0.5m", 30_000)),
    "max-claims": (("0", 0), ("5", 5), ("1000000", 1_000_000)),
    "signing-key": (("none", None), ("/run/secrets/key", "/run/secrets/key"), ("signing.key", "signing.key")),
    "shards": (("1", 1), ("16384", 16_384), ("64", 64)),
    "prefix": (("a", "a"), ("x:y", "x:y"), ("z" * 64, "z" * 64)),
    "remember": (("0", 0), ("1d", 86_400_000), ("0.0001", 1)),
    "durability": (("disk", "disk"), ("replica", "replica"), ("replica-disk", "replica-disk")),
    "durability-timeout": (("0.01", 10), ("1.5", 1500), ("500ms", 500)),
    "settle-durability": (("disk", "disk"), ("replica", "replica"), ("replica-disk", "replica-disk")),
    "store-offers": (("disk", "disk"), ("replica", "replica"), ("primary", "primary")),
    "store-timeout": (("0.1", 100), ("60", 60_000), ("5s", 5000)),
    "history": (("on", True), ("off", False), ("on", True)),
    "http-client": (("aiohttp", "aiohttp"), ("aiohttp", "aiohttp"), ("aiohttp", "aiohttp")),
    "proxy": (
        ("http://a:1", "http://a:1"),
        ("http://[::1]:2/", "http://[::1]:2/"),
        ("HTTPS://d_e.f:65535", "HTTPS://d_e.f:65535"),
    ),
    "guard": (("on", "on"), ("off", "off"), ("on", "on")),
    "guard-allow": (
        ("10.1.2.3", {"10.1.2.3/32"}),
        ("127.0.0.0/8,::1", {"127.0.0.0/8", "::1/128"}),
        ("Shop.internal.,*.Pods,bücher.example", {"shop.internal", "*.pods", "xn--bcher-kva.example"}),
    ),
    "guard-deny": (
        ("8.8.0.0/16", {"8.8.0.0/16"}),
        ("::ffff:8.8.8.0/120, 2600::/16", {"8.8.8.0/24", "2600::/16"}),
        ("8.8.8.8", {"8.8.8.8/32"}),
    ),
    "https-only": (("on", True), ("on", True), ("on", True)),
    "ca": (("/a", "/a"), ("b.pem", "b.pem"), ("none", None)),
    "events": (("http://a", "http://a"), ("https://b:1/x?key=y", "https://b:1/x?key=y"), ("none", None)),
    "drain": (("0", 0), ("5m", 300_000), ("1.5", 1500)),
    "policy-grace": (("0", 0), ("1m", 60_000), ("1.5", 1500)),
    "max-body": (("1024", 1024), ("16MiB", 16_777_216), ("64KiB", 65_536)),
    "max-pending-writes": (("1", 1), ("10000000", 10_000_000), ("500", 500)),
    "trace-context": (("keep", "keep"), ("off", "off"), ("keep", "keep")),
    "otlp": (("http://a:4318/", "http://a:4318"), ("https://b/x", "https://b/x"), ("http://[::1]:2", "http://[::1]:2")),
    "trace-parent": (("child", "child"), ("link", "link"), ("child", "child")),
    "trace-sample": (("0", 0.0), ("1", 1.0), ("0.01", 0.01)),
    "access-log": (("off", "off"), ("errors", "errors"), ("all", "all")),
    "log-format": (("json", "json"), ("console", "console"), ("json", "json")),
    "log-level": (("debug", "debug"), ("warning", "warning"), ("error", "error")),
    "url": (("http://a", "http://a"), ("https://b:1/x/", "https://b:1/x"), ("http://[::1]:2", "http://[::1]:2")),
    "key-file": (("/run/secrets/key", "/run/secrets/key"), ("none", None), ("key", "key")),
    "wait": (("0.1", 100), ("1h", 3_600_000), ("5", 5000)),
}
"""Three valid values of each option, as text and as the value read."""


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without later.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_config(command: str = "up", environ: dict[str, str] | None = None, **flags: str | None) -> Config:
    return load(command, flags, environ or {})


def write_file(text: str, name: str = "later.toml") -> None:
    Path(name).write_text(text, "utf-8")


def load_error(command: str = "up", environ: dict[str, str] | None = None, **flags: str | None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(command, environ, **flags)
    return str(caught.value)


def toml_literal(option: Option, text: str) -> str:
    """Return a value as it stands in the file."""
    if "a string" in option.type.toml_types:
        return json.dumps(text)
    return f"0{text}" if text.startswith(".") else text


def value_of(option: Option, config: Config) -> Any:
    return getattr(config.policy if option.in_policy else config, option.field)


def find_option(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


def a_command_with(option: Option) -> str:
    """Return a command that has the option: `up` if it does."""
    return "up" if "up" in option.commands else min(option.commands)


def test_every_option_has_samples_and_a_field_of_its_own() -> None:
    derived = {"command", "redis_given", "data_given", "health_given", "url_given", "root_key", "receivers"}
    own = [option.field for option in OPTIONS if not option.in_policy]
    in_policy = [option.field for option in OPTIONS if option.in_policy]
    assert list(SAMPLES) == NAMES
    assert {*own} | derived | {"policy"} == {field.name for field in fields(Config)}
    assert {*in_policy} | {"paused", "deliver", "callback", "dead_to", "dead_ttl_ms", "on_dead", "on_done"} == {
        *Policy.__struct_fields__
    }
    assert len({*own}) + len({*in_policy}) == len(OPTIONS)


def test_every_option_belongs_to_a_command() -> None:
    assert all(option.commands and option.commands <= ALL_COMMANDS for option in OPTIONS)


def test_the_defaults_are_as_documented() -> None:
    assert load_config() == Config(
        command="up",
        store_url="redis://127.0.0.1:6379/0", redis_given=False, data=Path("later-data"), data_given=False,
        listen=Address("127.0.0.1", 8080), auth="auto",
        root_key_file=None, root_key=None, allow_hosts=frozenset(), allow_origins=frozenset(),
        health=Address("127.0.0.1", 8081), health_given=False, idle_ms=75_000, connections=None, waiters=None,
        keep_failures=5,
        tls_cert=None, tls_key=None, behind_proxy=False, base_path="", console="on",
        processes=1, concurrency=256, tick_ms=100,
        lease_ms=30_000,
        policy=Policy(
            timeout_ms=15_000, retry=3, retry_base_ms=10_000, retry_cap_ms=3_600_000, retry_jitter=0.0,
            default_delay_ms=0, max_delay_ms=0, delay_mode=DelayMode.HONOR, delays=True, ttl_ms=0, ack=Ack.AUTO,
            rate=0.0, concurrency=0, ramp_ms=10_000, dead_keep_ms=2_592_000_000, remember_ms=7 * 86_400_000,
        ),
        shards=1, prefix="later", store_timeout_ms=2000, durability_timeout_ms=1000,
        settle_durability=Durability.PRIMARY,
        store_offers="auto",
        history=True, http_client="own", proxy=None,
        ca=None, receivers={}, events=None,
        signing_key=None, guard="auto", guard_allow=frozenset(), guard_deny=frozenset(), https_only=False,
        drain_ms=30_000,
        policy_grace_ms=30_000,
        max_body=1_048_576, max_pending_writes=10_000, trace_context="off", otlp=None, trace_parent="link",
        trace_sample=1.0, access_log="errors",
            log_format="console", log_level="info", url="http://127.0.0.1:8080",
        url_given=False, key_file=None,
        wait_ms=30_000,
    )  # fmt: skip


@each_case("name", NAMES)
def test_each_sample_is_read(name: str) -> None:
    option = find_option(name)
    for text, value in SAMPLES[name]:
        assert value_of(option, load(a_command_with(option), {option.key: text}, {})) == value


@each_case("name", NAMES)
def test_precedence_is_flag_environment_file_default(name: str) -> None:
    option, ((flag, by_flag), (variable, by_variable), (line, by_file)) = find_option(name), SAMPLES[name]
    command = a_command_with(option)
    default = value_of(option, load_config(command))
    write_file(f"{name} = {toml_literal(option, line)}")
    environ = {option.variable: variable}
    assert value_of(option, load_config(command)) == by_file
    assert value_of(option, load_config(command, environ)) == by_variable
    assert value_of(option, load(command, {option.key: flag}, environ)) == by_flag
    write_file("")
    assert value_of(option, load_config(command)) == default


@pytest.mark.parametrize("command", sorted(ALL_COMMANDS))
def test_a_command_reads_only_its_own_options(command: str) -> None:
    others = [option for option in OPTIONS if command not in option.commands]
    default = load_config(command)
    assert load(command, {}, {option.variable: "banana {}" for option in others}) == default
    write_file("\n".join(f"{option.key} = [1979-05-27]" for option in others))
    assert load_config(command) == default


def test_a_misspelt_option_of_the_file_is_refused_by_every_command() -> None:
    write_file("tik = 1")
    assert {load_error(command) for command in ALL_COMMANDS} == {"later.toml: unknown option 'tik'"}


@each_case(
    ("flags", "kept"),
    [
        ({}, "off"),
        ({"otlp": "http://a:4318"}, "keep"),
        ({"otlp": "none"}, "off"),
        ({"otlp": "http://a:4318", "trace_context": "off"}, "off"),
    ],
)
def test_trace_contexts_are_kept_where_there_are_traces(flags: dict[str, Any], kept: str) -> None:
    assert load_config(**flags).trace_context == kept


def test_an_empty_variable_is_ignored() -> None:
    assert load_config(environ={"LATER_TICK": ""}).tick_ms == 100


def test_a_file_may_have_numbers_and_keys_with_dashes_or_underscores() -> None:
    write_file('tick = 0.25\nstore_timeout = 5\nmax-delay = "1h"\nretry-jitter = 0.00001\nmax-body = 2048\n')
    config = load_config()
    assert (config.tick_ms, config.store_timeout_ms, config.policy.max_delay_ms) == (250, 5000, 3_600_000)
    assert (config.policy.retry_jitter, config.max_body) == (0.00001, 2048)


def test_processes_auto_is_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(6), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert load_config(processes="auto").processes == 6
    write_file('processes = "auto"')
    assert load_config().processes == 6
    write_file("processes = 5")
    assert load_config().processes == 5


@pytest.mark.parametrize(("granted", "counted"), [("150000 100000", 2), ("5000 100000", 1), ("max 100000", 6)])
def test_processes_auto_respects_the_limit_of_a_container(
    granted: str, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(6), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: granted)
    monkeypatch.setattr("later.config._read_file", lambda command, name: ({}, {}))
    assert load_config(processes="auto").processes == counted


def test_the_flag_or_the_environment_names_the_file() -> None:
    write_file("tick = 1", "a.toml")
    write_file("tick = 2", "b.toml")
    write_file("tick = 3")
    assert load_config(config="a.toml", environ={"LATER_CONFIG": "b.toml"}).tick_ms == 1000
    assert load_config(environ={"LATER_CONFIG": "b.toml"}).tick_ms == 2000
    assert load_config().tick_ms == 3000


@each_case(
    ("text", "message"),
    [
        ("tik = 1", "later.toml: unknown option 'tik'"),
        ("[worker]\ntick = 1", "later.toml: unknown option 'worker'"),
        ("store-timeout = 1\nstore_timeout = 2", "later.toml: store-timeout is given twice"),
        ("tick = true", "later.toml: tick: expected a number or a string, got a boolean"),
        ("tick = [1]", "later.toml: tick: expected a number or a string, got an array"),
        ("tick = 1979-05-27", "later.toml: tick: expected a number or a string, got a date or time"),
        ("processes = 1.5", "later.toml: processes: expected an integer or a string, got a number"),
        ("concurrency = 1.5", "later.toml: concurrency: expected an integer, got a number"),
        ('retry-jitter = "1"', "later.toml: retry-jitter: expected a number, got a string"),
        ("prefix = 5", "later.toml: prefix: expected a string, got an integer"),
        ("listen = 8080", "later.toml: listen: expected a string, got an integer"),
        ("tick = 0", "--tick 0 (later.toml): expected a duration of at least 0.01 s"),
        ("concurrency = -5", "--concurrency -5 (later.toml): expected an integer from 1 to 100000"),
    ],
)
def test_an_error_in_the_file_names_the_key(text: str, message: str) -> None:
    write_file(text)
    assert load_error() == message


@each_case("text", ["tick = inf", "tick = nan", "tick ="])
def test_invalid_toml_is_an_error_of_one_line(text: str) -> None:
    write_file(text)
    assert "later.toml" in load_error()
    assert "\n" not in load_error()


def test_a_file_that_is_named_must_exist_and_be_text() -> None:
    assert load_error(config="none.toml") == "--config none.toml: no such file"
    assert load_error(config=".") == "--config .: cannot be read: Is a directory"
    Path("x.toml").write_bytes(b"\xff")
    assert load_error(config="x.toml").startswith("--config x.toml: cannot be read: 'utf-8' codec")


AT_LEAST = "expected a duration of at least"
HOST_PORT = "expected HOST:PORT, like 127.0.0.1:8080, localhost:8080 or [::1]:8080"
PREFIX = r"expected 1 to 64 characters without white space, control characters or any of {}*?[]\^"
WRONG_PREFIXES = ("", "a b", "{a}", "a*", "a?", "a[", "a\\", "a^", "a\n", "\ud800", "a" * 65)
PROXY_URL = "expected http://HOST:PORT, like http://proxy.internal:3128 or http://user:password@proxy.internal:3128"
GUARD_RULES = "expected networks, addresses, names or zones, like 10.1.0.0/16,shop.internal,*.pods"
STORE_URL = "expected a redis://, rediss://, redis+sentinel://, redis+cluster:// or unix:// URL"
SENTINEL_URL = "expected redis+sentinel://user:password@HOST:PORT,HOST:PORT/SERVICE/DATABASE: the sentinels"
HTTP_URL = "expected an http or https URL with a host and without user:password@"


@each_case(
    ("name", "text", "message"),
    [
        ("tick", "0", f"{AT_LEAST} 0.01 s"),
        ("tick", "", "--tick '': expected a duration of at least 0.01 s, like 15, 500ms, 15s, 10m, 2h or 7d"),
        ("tick", "-1", f"{AT_LEAST} 0.01 s, like 15, 500ms, 15s, 10m, 2h or 7d"),
        ("tick", "abc", f"{AT_LEAST} 0.01 s, like"),
        ("tick", "1e3", f"{AT_LEAST} 0.01 s, like"),
        ("tick", "1 s", f"{AT_LEAST} 0.01 s, like"),
        ("tick", "٣", f"{AT_LEAST} 0.01 s, like"),
        ("tick", "1w", f"{AT_LEAST} 0.01 s, like"),
        ("tick", "9" * 400, "expected a duration of at most ten years"),
        ("timeout", "0.999", "expected a duration from 1 to 120 s"),
        ("timeout", "121", "expected a duration from 1 to 120 s"),
        ("lease", "0", f"{AT_LEAST} 1 s"),
        ("retry", "-1", "expected an integer from 0 to 1000"),
        ("retry", "1001", "expected an integer from 0 to 1000"),
        ("retry", "1.0", "expected an integer from 0 to 1000"),
        ("retry", "²", "expected an integer from 0 to 1000"),
        ("retry-base", "0", f"{AT_LEAST} 0.01 s"),
        ("retry-cap", "0", f"{AT_LEAST} 0.01 s"),
        ("retry-jitter", "1.1", "expected a number from 0 to 1"),
        ("retry-jitter", "-0.1", "expected a number from 0 to 1"),
        ("retry-jitter", ".", "expected a number from 0 to 1"),
        ("max-delay", "-1", f"{AT_LEAST} 0 s, like"),
        ("max-delay", "3654d", "expected a duration of at most ten years"),
        ("remember", "x", f"{AT_LEAST} 0 s, like"),
        ("drain", "x", f"{AT_LEAST} 0 s, like"),
        ("policy-grace", "x", f"{AT_LEAST} 0 s, like"),
        ("processes", "0", "--processes 0: expected auto or an integer from 1 to 256"),
        ("processes", "257", "--processes 257: expected auto or an integer from 1 to 256"),
        ("processes", "all", "--processes all: expected auto or an integer from 1 to 256"),
        ("concurrency", "0", "expected an integer from 1 to 100000"),
        ("shards", "0", "expected an integer from 1 to 16384"),
        ("shards", "16385", "expected an integer from 1 to 16384"),
        ("store-timeout", "0", "expected a duration from 0.1 to 60 s"),
        ("wait", "2h", "expected a duration from 0.1 to 3600 s"),
        ("max-pending-writes", "0", "expected an integer from 1 to 10000000"),
        ("max-body", "1023", "expected a size from 1024 bytes to 16MiB, like 65536, 512KiB or 1MiB"),
        ("max-body", "17MiB", "expected a size from"),
        ("max-body", "1MB", "expected a size from"),
        ("listen", "8080", HOST_PORT),
        ("listen", ":8080", HOST_PORT),
        ("listen", "::1:8080", HOST_PORT),
        ("listen", "[1.2.3.4]:1", HOST_PORT),
        ("listen", "a:65536", HOST_PORT),
        ("listen", "off", HOST_PORT),
        ("health", "on", HOST_PORT),
        ("data", "", "expected a path"),
        ("log-format", "xml", "--log-format xml: expected console or json"),
        ("log-level", "INFO", "--log-level INFO: expected debug, info, warning or error"),
        *(("prefix", text, PREFIX) for text in WRONG_PREFIXES),
        ("redis", "http://a", f"--redis http://a: {STORE_URL}, like redis://user:password@127.0.0.1:6379/0, with"),
        ("redis", "localhost:6379", STORE_URL),
        ("redis", "redis://a:b", STORE_URL),
        ("redis", "redis://a/0#x", STORE_URL),
        ("redis", "redis://", "expected redis://HOST:PORT/DATABASE, with a number as DATABASE"),
        ("redis", "redis://a/x", "expected redis://HOST:PORT/DATABASE, with a number as DATABASE"),
        ("redis", "unix://tmp/x", "expected unix:///PATH, with three slashes"),
        ("redis", "redis://a?foo=1", "expected only these parameters in a redis:// URL: db, password, username"),
        ("redis", "redis://a?ssl_ca_certs=x", "expected only these parameters in a redis:// URL: "),
        ("redis", "unix:///a?db=x", "expected a number as the URL's db"),
        ("redis", "redis+sentinel://a/0", SENTINEL_URL),
        ("redis", "redis+sentinel://a:1", SENTINEL_URL),
        ("redis", "rediss+sentinel://a:1,b/orders", SENTINEL_URL),
        ("redis", "redis+cluster://a", "expected redis+cluster://user:password@HOST:PORT,HOST:PORT: some nodes"),
        ("redis", "redis+cluster://a:1/2", "expected no database but 0 in a redis+cluster:// URL"),
        ("http-client", "httpx", "--http-client httpx: expected own or aiohttp"),
        ("proxy", "a:3128", PROXY_URL),
        ("proxy", "http://a", PROXY_URL),
        ("proxy", "http://a:0", PROXY_URL),
        ("proxy", "http://a:65536", PROXY_URL),
        ("proxy", "http://a:1/x", PROXY_URL),
        ("proxy", "http://a:1?x", PROXY_URL),
        ("proxy", "http://:1", PROXY_URL),
        ("proxy", "socks5://a:1", PROXY_URL),
        ("proxy", "https://a", PROXY_URL),
        ("proxy", "http://999.1.1.1:1", "--proxy http://999.1.1.1:1: a host that ends in a number is an IPv4 address"),
        ("proxy", "http://[zz]:1", "--proxy http://[zz]:1: "),
        ("proxy", "http://[::1%eth0]:1", "--proxy http://[::1%eth0]:1: "),
        ("proxy", "http://a..b:1", "--proxy http://a..b:1: a host is a name of at most 253 characters, in labels of"),
        ("guard", "yes", "--guard yes: expected auto, on or off"),
        ("guard-allow", "10.1.2.3/8", f"{GUARD_RULES}: 10.1.2.3/8 has host bits set"),
        ("guard-allow", "shop.internal:80", f"{GUARD_RULES}: this is no IPv6 address"),
        ("guard-allow", "*", f"{GUARD_RULES}: "),
        ("guard-allow", "*.10.0.0.1", GUARD_RULES),
        ("guard-allow", "", GUARD_RULES),
        ("guard-allow", "a,,b", GUARD_RULES),
        ("guard-deny", "shop.internal", "expected networks and addresses, like 10.1.0.0/16,10.2.3.4: 'shop"),
        ("url", "127.0.0.1:8080", HTTP_URL),
        ("url", "ftp://a", HTTP_URL),
        ("url", "http://", HTTP_URL),
        ("url", "http://a:b", HTTP_URL),
        ("url", "http://u:p@a", HTTP_URL),
        ("url", "http://a/?x=1", "expected a URL without query and fragment"),
    ],
)  # fmt: skip
def test_an_error_names_the_option_its_value_and_what_it_takes(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(a_command_with(find_option(name)), {find_option(name).key: text}, {})
    error = str(caught.value)
    assert error.startswith(f"--{name} ")
    assert message in error
    assert error.isprintable()


def test_an_error_names_the_variable() -> None:
    assert load_error(environ={"LATER_TICK": "0"}) == "--tick 0 (LATER_TICK): expected a duration of at least 0.01 s"


def test_an_error_shortens_a_long_value() -> None:
    assert len(load_error(listen="x" * 5000)) < 300


@each_case(
    "url",
    [
        "redis://:hunter2@a:b/0",
        "redis://me:hunter2@a/x",
        "redis://me:hun/hunter2@a/0",
        "redis://me:hun?hunter2@a/0",
        "redis://me:hun@hunter2@a:b/0",
        "redis://me:hunter2",
        "redis:me:hunter2@a/0",
        "me:hunter2@a",
        "hunter:x://hunter2@a",
        "http://me:hunter2@a/0",
        "unix:///a?password=hunter2&x=1",
        "redis+sentinel://me:hunter2@a,b/0",
        "redis+sentinel://a:1,b:2/orders?sentinel_password=hunter2&x=1",
        "redis+sentinel://a:1,b:2/orders/0&sentinel_password=hunter2",
        "redis+sentinel://a:1,b:2/orders/0#hunter2",
        "redis+sentinel://a:1,me:hunter2@b:2/orders/x",
        "redis://me:hunter2@a/0?foo=1",
        "redis://me:hunter2@[::1/0",
        "redis://me:hunter2 x@a/0",
    ],
)
def test_an_error_about_a_url_does_not_show_its_password(url: str) -> None:
    assert "hunter2" not in load_error(redis=url)


def test_a_url_is_shown_without_its_secrets_and_never_by_repr() -> None:
    config = load_config(redis="rediss://me:hunter2@[::1]:6379/1?ssl_ca_certs=/x")
    assert config.shown_store_url == "rediss://***@[::1]:6379/1?***"
    assert "hunter2" not in repr(config)
    assert mask_url("unix:///a?password=hunter@hunter2") == "unix://***"
    assert mask_url("unix:///tmp/a%20b.sock") == "unix:///tmp/a%20b.sock"


def test_a_proxys_password_is_refused_on_the_command_line_and_never_shown() -> None:
    use_another_way = "expected a URL without user:password@: use LATER_PROXY, or proxy in later.toml"
    assert load_error(proxy="http://me:hunter2@a:1") == f"--proxy http://***@a:1: {use_another_way}"
    assert "hunter2" not in load_error(environ={"LATER_PROXY": "http://me:hunter2@a:b"})
    assert load_error(environ={"LATER_PROXY": "http://me:hunter2@a..b:1"}).startswith(
        "--proxy http://***@a..b:1 (LATER_PROXY): a host is a name"
    )
    config = load_config(environ={"LATER_PROXY": "http://me:hunter2@a:1"})
    assert (config.proxy, config.shown_proxy) == ("http://me:hunter2@a:1", "http://***@a:1")
    assert "hunter2" not in repr(config)


EVENTS_URL = "expected an http(s) URL without user:password@ and fragment, like https://ops.example/later"


@each_case("url", ["ops", "ftp://a", "http://", "http://a#b", "http://me:hunter2@a/", "http://a/ b", "http://a:b"])
def test_the_receiver_of_events_is_a_url(url: str) -> None:
    assert load_error(events=url).startswith("--events ")
    assert load_error(events=url).endswith(f": {EVENTS_URL}")
    assert "hunter2" not in load_error(events=url)


def test_the_secret_of_a_receiver_of_events_is_never_shown() -> None:
    config = load_config(environ={"LATER_EVENTS": "https://a/?key=hunter2"})
    assert "hunter2" not in repr(config)
    error = load_error(environ={"LATER_EVENTS": "https://a..b/?key=hunter2"})
    assert error == "--events https://a..b/?*** (LATER_EVENTS): expected a URL that a receiver can have"


def test_the_lease_follows_the_timeout_and_exceeds_it() -> None:
    assert load_config(timeout="60").lease_ms == 75_000
    assert load_error(lease="15.499") == "--lease 15.499: expected at least 0.5 s more than --timeout 15s"
    assert load_error(lease="60", timeout="1m") == "--lease 60: expected at least 0.5 s more than --timeout 1m"
    assert load_config(lease="15.5").lease_ms == 15_500


def test_the_first_retry_pause_is_at_most_the_cap() -> None:
    assert load_error(retry_base="2h") == "--retry-base 2h: expected at most --retry-cap 3600s"
    assert load_error(retry_cap="5") == "--retry-base 10s: expected at most --retry-cap 5"


def test_a_guard_that_is_off_takes_no_list_of_what_it_refuses() -> None:
    expected = (
        "--guard-deny 8.8.8.8: expected --guard on, because --guard off refuses nothing; "
        "to refuse only these, say --guard on --guard-allow 0.0.0.0/0,::/0"
    )
    assert load_error(guard="off", guard_deny="8.8.8.8") == expected
    assert load_error(guard="off", environ={"LATER_GUARD_DENY": "8.8.8.8"}) == expected
    assert load("up", {"guard": "off", "guard_deny": "none"}, {}).guard == "off"
    assert load_config(retry_cap="10").policy.retry_cap_ms == 10_000


def given_store_options(config: Config) -> tuple[bool, bool]:
    return config.redis_given, config.data_given


@pytest.mark.parametrize("command", ["serve", "worker", "status", "doctor"])
def test_redis_and_data_exclude_each_other_at_the_same_precedence(command: str) -> None:
    message = "--redis and --data: expected one of them, got both"
    assert load_error(command, redis="redis://a", data="b") == message
    assert given_store_options(load_config(command, {"LATER_REDIS": "redis://a"}, data="b")) == (False, True)
    assert given_store_options(load_config(command, {"LATER_DATA": "b"}, redis="redis://a")) == (True, False)
    assert given_store_options(load_config(command)) == (False, False)
    write_file('data = "b"\nredis = "redis://a"')
    assert "later.toml" in load_error(command)


def test_redis_from_any_source_replaces_the_store_of_up() -> None:
    assert given_store_options(load_config("up", {"LATER_REDIS": "redis://a"}, data="b")) == (True, False)
    assert given_store_options(load_config("up", redis="redis://a", data="b")) == (True, False)
    assert given_store_options(load_config("up", data="b")) == (False, True)


def test_health_is_given_if_any_source_sets_it() -> None:
    default = find_option("health").default
    assert not load_config("worker").health_given
    assert load_config("worker", health=default).health_given
    assert load_config("worker", {"LATER_HEALTH": "off"}).health_given
    write_file(f'health = "{default}"')
    assert load_config("worker").health_given


@each_case("command", sorted(ALL_COMMANDS))
def test_every_default_can_be_written_into_a_file(command: str) -> None:
    options = [o for o in OPTIONS if o.default is not None and o.name not in ("redis", "data", "health")]
    before = load_config(command)
    write_file("\n".join(f"{option.name} = {toml_literal(option, option.default or '')}" for option in options))
    assert load_config(command) == before


def test_a_list_is_written_in_a_file_as_an_array_or_with_commas() -> None:
    write_file('allow_host = ["a.internal", "B"]\nallow-origin = "https://a, https://b"')
    config = load_config()
    assert config.allow_hosts == {"a.internal", "b"}
    assert config.allow_origins == {"https://a", "https://b"}
    assert load_config("up", {"LATER_ALLOW_HOST": "c,d"}).allow_hosts == {"c", "d"}
    assert load_config("up", {"LATER_ALLOW_HOST": "c"}, allow_host="none").allow_hosts == frozenset()


def test_an_array_of_others_than_names_is_refused() -> None:
    write_file("allow_host = [5.5, true]")
    assert load_error() == "later.toml: allow_host: expected only strings in the array"


def test_only_the_own_client_calls_a_proxy_by_https() -> None:
    assert load_config(proxy="https://a:1").proxy == "https://a:1"
    error = load_error(proxy="https://a:1", http_client="aiohttp")
    assert error == "--http-client aiohttp: expected own, because only that calls a proxy by https"


def test_the_table_of_receivers_is_for_the_commands_that_call_them() -> None:
    write_file('tick = 1\n[receivers."*.a"]\ncert = "a.pem"\n')
    assert load_config("worker").receivers == {"*.a": ReceiverTls(cert=Path("a.pem"))}
    assert load_config("serve").receivers == {}
    write_file('[receivers."*.a"]\nkey = "a.pem"\n')
    assert load_error("up") == 'later.toml: receivers."*.a": expected cert, too, where there is a key'
