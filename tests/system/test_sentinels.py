"""A store behind sentinels, whose primary dies under load."""

from __future__ import annotations

import time
from pathlib import Path

from tests.sentinel_service import run_sentinel_service
from tests.system.api_client import get, post
from tests.system.creating_clients import CLIENTS, DELAY_S, run_creating_clients
from tests.system.daemons import Daemon, run_command, run_daemon
from tests.system.receivers import Receiver
from tests.system.stores import count_tasks
from tests.system.waiting import wait_until

UNDER_LOAD_S = 2.0
LOST_S = 0.5
"""Tasks that were sent in this time before the death of a primary may be lost: it answers before replicas have them."""
BEFORE_S, AFTER_S = 0.5, 8.0
"""Tasks that arrived in this time around the death of a primary may arrive again: their settle was lost with it."""


def test_what_was_accepted_is_delivered_though_the_primary_dies(folder: Path, receiver: Receiver) -> None:
    with run_sentinel_service(folder) as service:
        options = ("--redis", service.url, "--shards", "4")
        with (
            run_daemon("serve", folder, *options) as serve,
            run_daemon("worker", folder, *options, "--timeout", "2", "--lease", "4") as first,
            run_daemon("worker", folder, *options, "--timeout", "2", "--lease", "4") as second,
        ):
            for daemon in (serve, first, second):
                _ = daemon.url  # it listens, so it has used the first primary: only then it notices a failover
            with run_creating_clients(serve.url, receiver.url()) as clients:
                time.sleep(UNDER_LOAD_S)
                killed_at = time.time()
                service.kill(service.first)
                dead_at = time.time()
                newest = service.wait_for_another(service.first)
                accepted = len(clients.accepted)
                wait_until(lambda: len(clients.accepted) > accepted + 20, "creates continue")
            at_risk = {id for id, due_at in clients.accepted.items() if killed_at - LOST_S < due_at - DELAY_S < dead_at}
            wait_until(lambda: receiver.ids >= clients.accepted.keys() - at_risk, "what was accepted is delivered")
            with service.connect(newest) as primary:
                wait_until(lambda: count_tasks(primary, 4) == 0, "every delivery is settled", 60)
            for daemon in (serve, first, second):
                event = daemon.wait_for_event("store failed over")
                assert (event["before"], event["now"]) == (str(service.first), str(newest))
                assert 1 <= _failovers(daemon) <= max(1, len(daemon.children()))
            assert get(serve.url, "/readyz").status == 200
    assert len(clients.accepted.keys() - receiver.ids) <= CLIENTS, "each has one create under way"
    assert [c for c in receiver.calls if c.arrived < clients.accepted[c.id]] == []
    repeated = [first_call.arrived for first_call, _ in receiver.repeated_calls()]
    assert [at for at in repeated if not killed_at - BEFORE_S < at < killed_at + AFTER_S] == []


def test_commands_take_the_url_of_the_sentinels(folder: Path) -> None:
    with run_sentinel_service(folder, has_users=True) as service:
        with run_daemon("up", folder, "--redis", service.url) as up:
            created = post(up.url, "/create", {"topic": "order", "callback": "http://127.0.0.1:1/", "delay": 3600})
            assert created.status == 200
            status = run_command("status", "--redis", service.url)
            assert status.returncode == 0, status.stderr
            assert str(service.first) in status.stdout
            doctor = run_command(
                "doctor", "--redis", service.url.replace("later:later@", "later-operator:later-operator@")
            )
            assert doctor.returncode == 0, doctor.stderr
        for sentinel in service.sentinels:
            service.kill(sentinel)
        refused = run_command("status", "--redis", service.url)
        assert refused.returncode != 0
        assert "no sentinel answers" in refused.stderr


def _failovers(daemon: Daemon) -> float:
    lines = get(daemon.url, "/metrics").body.decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("later_store_failovers_total")))
