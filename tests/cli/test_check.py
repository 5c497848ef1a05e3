"""`later check`: what would be called, and why not."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cli.api_stub import Capture, exit_code_of

PROXY = ("--proxy", "http://p:1")
FOUND = {
    "billing.internal": ["10.2.3.4", "2600::1"],
    "shop.example": ["8.8.8.8"],
    "fd.example": ["fd00::1"],
}


@pytest.fixture(autouse=True)
def name_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def getaddrinfo(host: str, port: int, *_args: object, **_named: object) -> list[Any]:
        if host not in FOUND:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in FOUND[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("later.delivery.own_address.is_own_address", lambda address: str(address) == "8.8.4.4")
    monkeypatch.chdir(tmp_path)


def answer_of(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    status = exit_code_of("check", "--json", *arguments)
    return status, json.loads(capsys.readouterr().out)


def test_each_address_is_judged_and_one_that_is_called_is_enough(capsys: Capture) -> None:
    assert answer_of(capsys, "https://billing.internal:8443/hook?x") == (
        0,
        {
            "url": "https://billing.internal:8443/hook?x",
            "guard": True,
            "called": True,
            "addresses": [
                {"address": "10.2.3.4", "called": False, "why": "private", "allow": "--guard-allow 10.2.3.4/32"},
                {"address": "2600::1", "called": True, "why": None, "allow": None},
            ],
        },
    )


@pytest.mark.parametrize(
    ("url", "options", "line"),
    [
        ("http://shop.example/", (), "8.8.8.8  yes"),
        ("http://127.1/", (), "127.0.0.1  no      loopback: --guard-allow 127.0.0.1/32 allows it"),
        ("http://8.8.4.4/", (), "8.8.4.4  no      own: --guard-allow 8.8.4.4/32 allows it"),
        ("http://fd.example/", (), "fd00::1  no      private: --guard-allow fd00::1/128 allows it"),
        ("http://fd.example/", ("--guard-allow", "*.example"), "fd00::1  yes"),
        ("http://fd.example/", ("--guard", "off"), "fd00::1  yes"),
        ("http://shop.example/", ("--guard-deny", "8.8.8.0/24"), "8.8.8.8  no      denied: --guard-deny refuses it"),
        ("http://shop.example/", ("--https-only", "on"), "any      no      it is not https, and --https-only is on"),
        ("http://fd.example/", PROXY, "any      yes     the proxy looks the name up, and judges it"),
        ("http://127.1/", PROXY, "127.0.0.1  no      loopback: --guard-allow 127.0.0.1/32 allows it"),
    ],
)  # fmt: skip
def test_the_answer_says_why_and_which_option_decides(
    url: str, options: tuple[str, ...], line: str, capsys: Capture
) -> None:
    status = exit_code_of("check", url, *options)
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert rows == [line]
    assert (status, "not" in first) == ((1, True) if "  no  " in line else (0, False))


def test_the_options_of_the_file_count(capsys: Capture) -> None:
    Path("later.toml").write_text('guard_allow = ["10.2.0.0/16", "127.0.0.1"]\nconcurrency = 5\n')
    assert answer_of(capsys, "http://127.1/")[0] == 0
    assert answer_of(capsys, "http://billing.internal/")[1]["addresses"][0]["called"]


def test_a_url_that_cannot_be_called_and_a_name_without_addresses_are_errors(capsys: Capture) -> None:
    assert exit_code_of("check", "ftp://x") == 1
    assert "callback: expected an absolute http or https URL" in capsys.readouterr().err
    assert exit_code_of("check", "http://nowhere.example/") == 1
    error = "later: nowhere.example: the name lookup failed: Name or service not known\n"
    assert capsys.readouterr().err == error
