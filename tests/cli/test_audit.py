"""The command `audit`."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from redis import Redis

from later.cli.commands.audit import print_events
from later.cli.store_access import run_with_store, this_user
from later.config import load
from later.core.audit_event import AuditAction, AuditEvent
from later.core.errors import Conflict
from later.store.audit_trail import AuditEntry
from later.store.open import Store
from tests.cli.api_stub import Capture, exit_code_of
from tests.servers import shared_server

AT = 1_800_000_000_000


@pytest.fixture
def url() -> str:
    with Redis.from_url(shared_server()) as client:
        client.flushall()
    return shared_server()


def test_events_are_shown_with_what_was_changed(capsys: Capture) -> None:
    changed = {"event": "policy changed", "key": None, "peer": "10.0.0.9", "namespace": "shop", "outcome": "done",
               "topic": "shop/a", "before": {}, "after": {"rate": 50}}  # fmt: skip
    assert print_events([AuditEntry(AT, changed)], as_json=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "time                      event           key  peer      namespace  outcome  details",
        '2027-01-15T08:00:00.000Z  policy changed  -    10.0.0.9  shop       done     '
        'topic=shop/a before={} after={"rate": 50}',
    ]  # fmt: skip
    assert print_events([AuditEntry(AT, changed)], as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"time": "2027-01-15T08:00:00.000Z", **changed}


def test_a_command_that_opens_the_store_writes_its_events_before_it_closes_it(url: str, capsys: Capture) -> None:
    async def make_two_keys_and_fail(store: Store) -> int:
        for name in ("first", "second"):
            await asyncio.sleep(0)
            store.audit_trail.record(AuditEvent(action=AuditAction.KEY_MADE, key=this_user(), details={"name": name}))
        raise Conflict("no third key")

    with pytest.raises(Conflict):
        run_with_store(load("status", {"redis": url}, {}), make_two_keys_and_fail)
    assert exit_code_of("audit", "--redis", url, "--key", this_user(), "--since", "1m", "--json") == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["first", "second"]
    assert exit_code_of("audit", "--redis", url, "--key", "cli:nobody", "--json") == 0
    assert exit_code_of("audit", "--redis", url, "--since", str(time.time() + 60), "--json") == 0
    assert capsys.readouterr().out == ""


def test_a_user_without_an_account_is_named_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000_001)
    assert this_user() == "cli:4000000001"
