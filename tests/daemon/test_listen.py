"""Log events about the address that a daemon listens on."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from later.address_types import Address
from later.config import load
from later.daemon.listen import log_listening


def test_a_daemon_without_keys_that_others_reach_says_by_which_names() -> None:
    with capture_logs() as events:
        config = load("up", {"listen": "later.internal:8080", "allow_host": "later", "auth": "off"}, {})
        log_listening(Address("later.internal", 8080), [Address("10.0.0.5", 8080)], config)
    assert [event["event"].partition(":")[0] for event in events] == [
        "listening",
        "keys and tasks travel in clear",
        "listening beyond this machine",
        "no console beyond this machine",
        "other host names are refused",
    ]
    assert events[-1]["hosts"] == "later, later.internal, localhost"


def test_a_daemon_with_keys_says_nothing_of_names() -> None:
    with capture_logs() as events:
        log_listening(Address("0.0.0.0", 0), [Address("0.0.0.0", 8080)], load("up", {"behind_proxy": "on"}, {}))
    assert [event["event"] for event in events] == ["listening", "console"]


@pytest.mark.parametrize("flags", [{"behind_proxy": "on"}, {"tls_cert": "a.pem"}])
def test_nothing_travels_in_clear_with_a_certificate_or_behind_a_proxy(flags: dict[str, str]) -> None:
    with capture_logs() as events:
        log_listening(Address("later.internal", 8080), [Address("10.0.0.5", 8080)], load("up", flags, {}))
    assert not [event for event in events if "travel in clear" in event["event"]]
    assert events[0]["url"] == f"http{'s' if 'tls_cert' in flags else ''}://10.0.0.5:8080"


def test_a_daemon_on_loopback_says_nothing_of_names() -> None:
    with capture_logs() as events:
        log_listening(Address("127.0.0.1", 0), [Address("127.0.0.1", 8080)], load("up", {}, {}))
    assert [event["event"] for event in events] == ["listening", "console"]


@pytest.mark.parametrize(
    ("flags", "urls"),
    [
        ({}, ["http://127.0.0.1:8080/console/"]),
        ({"base_path": "/later", "console": "readonly"}, ["http://127.0.0.1:8080/later/console/"]),
        ({"console": "off"}, []),
        ({"auth": "off"}, ["http://127.0.0.1:8080/console/"]),
    ],
)
def test_a_daemon_with_a_console_says_where(flags: dict[str, str], urls: list[str]) -> None:
    config = load("up", flags, {})
    with capture_logs() as events:
        log_listening(Address("127.0.0.1", 0), [Address("127.0.0.1", 8080)], config)
    assert [event["url"] for event in events if event["event"] == "console"] == urls
    assert [event["mode"] for event in events if event["event"] == "console"] == [config.console][: len(urls)]


@pytest.mark.parametrize(("auth", "mode"), [("off", "off"), ("auto", "on"), ("keys", "on")])
def test_without_keys_there_is_no_console_beyond_this_machine(auth: str, mode: str) -> None:
    assert load("up", {"listen": "0.0.0.0:8080", "auth": auth}, {}).console_mode == mode
    assert load("up", {"auth": auth}, {}).console_mode == "on"
    assert load("worker", {"auth": auth}, {}).console_mode == "off"
