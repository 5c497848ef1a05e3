"""The address guard at the write: every call that writes a callback refuses an address in the same words."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from later.core.address_guard import AddressGuard
from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api

DETAIL = "callback: this daemon does not call {} ({}); its operator can allow it with --guard-allow"
REFUSED = {
    "http://127.0.0.1/": ("127.0.0.1", "loopback"),
    "http://0x7f.1:8080/x?y": ("127.0.0.1", "loopback"),
    "https://2130706433/": ("127.0.0.1", "loopback"),
    "http://①②⑦.0.0.1/": ("127.0.0.1", "loopback"),
    "http://[::1]/": ("::1", "loopback"),
    "http://[::ffff:10.2.3.4]:1/": ("10.2.3.4", "private"),
    "http://169.254.169.254/latest": ("169.254.169.254", "link-local"),
    "http://[64:ff9b::a00:1]/": ("64:ff9b::a00:1", "translated"),
    "http://8.8.4.4/": ("8.8.4.4", "own"),
}
ACCEPTED = (
    "http://localhost/",
    "https://receiver.example/",
    "http://8.8.8.8/",
    "http://10.9.0.1/",
    "https://[2600::1]/",
)


@pytest.fixture
async def api() -> AsyncIterator[ApiFixture]:
    guard = AddressGuard(
        is_own=lambda address: str(address) == "8.8.4.4", allow=["10.9.0.0/16"], deny=["10.9.1.0/24", "1.1.1.1/32"]
    )
    async with serve_api(guard=guard) as built:
        yield built


async def refusals_of(api: ApiFixture, callback: str) -> list[tuple[Any, Any]]:
    """Return the detail and the field with which each call that writes a callback refuses this one."""
    draft = MINIMAL | {"callback": callback}
    answers = [await api.post("/create", draft), await api.post("/update", {"id": "known", "callback": callback})]
    for query in ("", "?dry_run=true", "?job=j"):
        _, batch = await api.post(f"/create/batch{query}", [draft])
        answers.append((400, batch["results"][0]["error"] if "error" in batch["results"][0] else batch["results"][0]))
    for path in ("topics/order", "namespaces/shop"):
        answers += [await api.request(method, f"/{path}/policy", {"callback": callback}) for method in ("PUT", "PATCH")]
    return [(answer.get("detail"), answer.get("field")) for _, answer in answers]


async def test_every_write_refuses_an_address_in_the_same_words(api: ApiFixture) -> None:
    await api.post("/create", MINIMAL | {"id": "known", "callback": "http://receiver.example/", "delay": 60})
    for callback, (address, why) in REFUSED.items():
        found = await refusals_of(api, callback)
        assert found == [(DETAIL.format(address, why), "callback")] * len(found), callback
    denied = "callback: this daemon does not call 10.9.1.1 (denied); its operator refuses it with --guard-deny"
    assert set(await refusals_of(api, "http://10.9.1.1/")) == {(denied, "callback")}
    assert (await api.post("/query", {"id": "known"}))[1]["callback"] == "http://receiver.example/"


async def test_names_and_allowed_addresses_are_accepted_without_a_lookup(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", None)
    for callback in ACCEPTED:
        assert (await api.post("/create", MINIMAL | {"callback": callback}))[0] == 200, callback


async def test_an_address_that_cannot_be_judged_now_is_left_to_the_worker() -> None:
    def cannot_tell(address: object) -> bool:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with serve_api(guard=AddressGuard(is_own=cannot_tell)) as api:
        assert (await api.post("/create", MINIMAL | {"callback": "http://8.8.8.8/"}))[0] == 200


async def test_refused_writes_are_counted_by_their_cause(api: ApiFixture) -> None:
    await refusals_of(api, "http://127.0.0.1/")
    await refusals_of(api, "http://1.1.1.1/")
    counted = api.metrics.exposition().text
    assert 'later_callbacks_refused_total{why="loopback"} 9.0' in counted
    assert 'later_callbacks_refused_total{why="denied"} 9.0' in counted


async def test_with_https_only_http_is_refused_whether_the_guard_is_on_or_off() -> None:
    for is_on in (True, False):
        guard = AddressGuard(is_own=lambda address: False, https_only=True, is_on=is_on)
        async with serve_api(guard=guard) as api:
            detail = "callback: this daemon calls https URLs only (--https-only)"
            assert set(await refusals_of(api, "http://receiver.example/")) == {(detail, "callback")}
            assert (await api.post("/create", MINIMAL | {"callback": "https://receiver.example/"}))[0] == 200


async def test_a_change_that_leaves_the_callback_is_not_judged() -> None:
    guard = AddressGuard(is_own=lambda address: False, is_on=False)
    async with serve_api(guard=guard) as api:
        await api.post("/create", MINIMAL | {"id": "a", "callback": "http://10.2.3.4/", "delay": 60})
        guard.is_on = True
        assert (await api.post("/update", {"id": "a", "delay": 90}))[0] == 200
