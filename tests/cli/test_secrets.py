"""The command `secrets`."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from typing import Any

import pytest
from redis import Redis

from later.core.clock import Clock
from later.core.origin import Origin
from later.core.policy import DEFAULT_POLICY, Sign
from later.core.policy_scopes import namespace_scope
from later.core.signing import Master, SecretScope, derive_secret, origin_scope, parse_masters
from later.store.open import open_store
from later.store.settings import StoreSettings
from tests.cli.api_stub import Capture, exit_code_of
from tests.servers import shared_server

MASTER, OTHER = Master(bytes(range(32))), Master(bytes(32))
SHOP = SecretScope(Sign.NAMESPACE, "shop")


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and the signing key, in the environment."""
    with Redis.from_url(shared_server()) as client:
        client.flushall()
    monkeypatch.setenv("LATER_REDIS", shared_server())
    monkeypatch.setenv("LATER_SIGNING_KEY", MASTER.text)


def set_sign(namespace: str, sign: Sign) -> None:
    async def write() -> None:
        clock = Clock(time.monotonic, time.time)
        async with aclosing(
            await open_store(
                StoreSettings(url=shared_server(), prefix="later", timeout_s=2.0), clock, DEFAULT_POLICY, 1
            )
        ) as store:
            await store.policies.change(namespace_scope(namespace), lambda own: own.merge({"sign": sign.value}))

    asyncio.run(write())


def output(capsys: Capture, *arguments: str) -> str:
    """Run `later secrets …`, which must succeed, and return what it prints on standard output."""
    assert exit_code_of("secrets", *arguments) == 0
    return capsys.readouterr().out


def rows(capsys: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output(capsys, "list", "--json").splitlines()]


def test_init_prints_a_new_key_each_time(capsys: Capture) -> None:
    first, second = output(capsys, "init"), output(capsys, "init")
    assert len({parse_masters(first), parse_masters(second)}) == 2


def test_show_prints_the_secret_of_what_the_options_name(capsys: Capture) -> None:
    shop = Origin.of("https://shop.example")
    for scope, *options in (
        (SecretScope(Sign.NAMESPACE, "default"),),
        (SHOP, "--namespace", "shop"),
        (SecretScope(Sign.TOPIC, "shop/order"), "--topic", "shop/order"),
        (SecretScope(Sign.TOPIC, "order"), "--topic", "default/order"),
        (origin_scope("default", shop), "--url", "https://SHOP.example:443/hook?x=1"),
        (origin_scope("team", shop), "--namespace", "team", "--url", "https://shop.example"),
    ):
        assert output(capsys, "show", *options) == derive_secret(MASTER, scope, 1).text + "\n"


def test_a_rotation_prints_the_new_secret_and_show_both_while_they_sign(capsys: Capture) -> None:
    new, old = derive_secret(MASTER, SHOP, 2).text, derive_secret(MASTER, SHOP, 1).text
    assert output(capsys, "rotate", "--namespace", "shop", "--overlap", "1h") == f"{new}\n"
    assert output(capsys, "show", "--namespace", "shop") == f"{new}\n"
    shown = json.loads(output(capsys, "show", "--namespace", "shop", "--json"))
    assert [(found["generation"], found["secret"]) for found in shown["secrets"]] == [(2, new), (1, old)]


def test_a_rotation_of_all_prints_no_secret_and_concerns_what_was_never_used(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output(capsys, "rotate", "--topic", "shop/order")
    monkeypatch.setenv("LATER_SIGNING_KEY", f"{OTHER.text}\n{MASTER.text}")
    assert output(capsys, "rotate", "--all", "--overlap", "0") == ""
    assert output(capsys, "show", "--namespace", "shop") == derive_secret(OTHER, SHOP, 2).text + "\n"
    assert [(row["of"], row["generation"], row["key"]) for row in rows(capsys)] == [
        ("topic shop/order", 3, OTHER.fingerprint),
        ("all others", 2, OTHER.fingerprint),
    ]


def test_list_says_which_key_is_missing_and_prints_no_secret(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    output(capsys, "rotate", "--url", "https://shop.example", "--overlap", "0")
    monkeypatch.setenv("LATER_SIGNING_KEY", OTHER.text)
    table = output(capsys, "list")
    assert table.splitlines()[0].split() == ["secret", "of", "generation", "since", "until", "key"]
    assert "origin https://shop.example of namespace default  2 " in table
    assert f"{MASTER.fingerprint} (missing)" in table
    assert "whsec_" not in table
    assert [row["has_key"] for row in rows(capsys)] == [False, True]
    assert exit_code_of("secrets", "show", "--url", "https://shop.example") == 1
    assert f"the signing key {MASTER.fingerprint} is missing" in capsys.readouterr().err


def test_the_secret_of_another_key_than_the_workers_comes_with_a_note(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Redis.from_url(shared_server()) as client:  # as a worker does
        client.hset("later:meta", "signing", MASTER.fingerprint)
    output(capsys, "show")
    output(capsys, "rotate", "--topic", "order")
    monkeypatch.setenv("LATER_SIGNING_KEY", OTHER.text)
    assert exit_code_of("secrets", "show") == 0
    note = f"workers on this store sign by the signing key {MASTER.fingerprint}, not by {OTHER.fingerprint}"
    assert note in capsys.readouterr().err
    assert exit_code_of("secrets", "show", "--topic", "order") == 1
    assert note not in capsys.readouterr().err


def test_without_a_key_nothing_is_shown_or_rotated(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATER_SIGNING_KEY")
    for command in (["show"], ["rotate", "--namespace", "shop"]):
        assert exit_code_of("secrets", *command) == 1
        assert "signing key" in capsys.readouterr().err


def test_a_fourth_secret_is_refused(capsys: Capture) -> None:
    for _ in range(2):
        output(capsys, "rotate", "--namespace", "shop")
    assert exit_code_of("secrets", "rotate", "--namespace", "shop") == 1
    assert "3 secrets sign already: rotate again after" in capsys.readouterr().err
    assert [row["generation"] for row in rows(capsys)][:3] == [3, 2, 1]


def test_a_rotation_is_in_the_audit_trail_without_its_secret(capsys: Capture) -> None:
    output(capsys, "rotate", "--topic", "shop/order", "--overlap", "90s")
    assert exit_code_of("audit", "--json") == 0
    printed = capsys.readouterr().out
    event = json.loads(printed)
    assert (event["event"], event["namespace"], event["of"]) == ("signing secret rotated", "shop", "topic shop/order")
    assert (event["generation"], event["overlap"], event["outcome"]) == (2, 90, "done")
    assert "whsec_" not in printed


def test_options_that_do_not_go_together_are_wrong_usage(capsys: Capture) -> None:
    for arguments in (
        ["rotate"],
        ["rotate", "--all", "--topic", "a"],
        ["rotate", "--namespace", "a", "--overlap", "31d"],
        ["show", "--topic", "a", "--namespace", "b"],
        ["show", "--topic", "a", "--url", "http://b"],
        ["show", "--url", "ftp://b"],
    ):
        assert exit_code_of("secrets", *arguments) == 2, arguments
        assert "Usage:" in capsys.readouterr().err


def test_the_secret_of_a_topic_that_does_not_sign_comes_with_a_note(capsys: Capture) -> None:
    assert exit_code_of("secrets", "show", "--topic", "order") == 0
    assert "topic order is signed by `sign` namespace" in capsys.readouterr().err


def test_a_secret_that_signs_nothing_by_the_policy_comes_with_a_note(capsys: Capture) -> None:
    assert exit_code_of("secrets", "show", "--namespace", "shop", "--url", "https://a.example") == 0
    assert "is signed by `sign` namespace, unless the daemons have --sign origin" in capsys.readouterr().err
    for command in ("show", "rotate"):
        assert exit_code_of("secrets", command, "--namespace", "shop") == 0
        assert "not its secret" not in capsys.readouterr().err
    set_sign("shop", Sign.ORIGIN)
    for command in ("show", "rotate"):
        assert exit_code_of("secrets", command, "--namespace", "shop") == 0
        assert "namespace shop is signed by `sign` origin: this is not its secret" in capsys.readouterr().err
