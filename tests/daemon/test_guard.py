"""When the address guard is on: everywhere but where every caller reaches the same addresses without later."""

from __future__ import annotations

import pytest
import structlog

from later.config import load
from later.core.origin import Origin
from later.daemon.guard import build_guard, log_guard, resolve_guard, why_guard_is_off

STORE = {"redis": "redis://a"}
LOOPBACK = "this daemon is on loopback, with its own store and without keys"


def why_off(command: str, flags: dict[str, str], *, has_keys: bool = False) -> str | None:
    config = resolve_guard(load(command, flags, {}))
    assert resolve_guard(config) == config
    return why_guard_is_off(config.guard, has_keys=has_keys)


@pytest.mark.parametrize("flags", [{}, {"listen": "localhost:1"}, {"listen": "[::1]:1"}, {"guard_allow": "10.0.0.0/8"}])
def test_it_is_off_for_an_up_on_loopback_with_its_own_store_and_without_keys(flags: dict[str, str]) -> None:
    assert why_off("up", flags) == LOOPBACK
    assert why_off("up", flags | {"guard": "on"}) is None
    assert why_off("up", flags, has_keys=True) is None


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("up", STORE),
        ("up", {"listen": "0.0.0.0:1"}),
        ("up", {"listen": "later.internal:1"}),
        ("up", {"guard_deny": "8.8.8.8"}),
        ("serve", {}),
        ("serve", {"data": "d"}),
        ("serve", STORE),
        ("worker", STORE),
        ("worker", {"data": "d", "health": "off"}),
    ],
)
def test_it_is_on_for_every_other_daemon(command: str, flags: dict[str, str]) -> None:
    assert why_off(command, flags) is None
    assert why_off(command, flags | {"guard": "off", "guard_deny": "none"}, has_keys=True) == "--guard off"


def test_it_is_built_from_the_options() -> None:
    flags = {"guard_allow": "10.1.0.0/16,shop.internal", "guard_deny": "10.1.9.0/24", "https_only": "on"}
    guard = build_guard(load("worker", STORE | flags, {}))
    judged = [
        guard.judge_address(host, address) for host, address in (("h", "10.1.0.1"), ("shop.internal", "127.0.0.1"))
    ]
    assert judged == [None, None]
    refusals = [guard.judge_address("h", "10.1.9.1"), guard.judge_url(Origin.of("http://h/"))]
    assert [refusal and refusal.why for refusal in refusals] == ["denied", "http"]
    behind_proxy = build_guard(load("worker", STORE | {"proxy": "http://p:1"}, {}))
    assert (behind_proxy.judge_address("p", "10.0.0.1"), behind_proxy.judges_calls) == (None, True)


def test_a_daemon_says_whether_it_is_on_and_why_not() -> None:
    with structlog.testing.capture_logs() as logs:
        log_guard(None)
        log_guard(LOOPBACK)
    on, off = logs
    assert (on["event"], on["guard"], off["guard"], off["reason"]) == ("address guard", "on", "off", LOOPBACK)
