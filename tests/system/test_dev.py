"""`later dev`: what is due in months is tried in seconds, and nothing but it uses its store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.api_client import Answer, call, create, get, list_dead, post, query
from tests.system.daemons import Daemon, run_command, run_daemon, run_up
from tests.system.receivers import Receiver, status
from tests.system.waiting import wait_until

DAY_S = 86_400


@pytest.fixture(scope="module")
def processes() -> int:
    """One: it has no option for more."""
    return 1


@pytest.fixture
def dev(folder: Path) -> Iterator[Daemon]:
    with run_daemon("dev", folder, "--retry", "2", "--retry-base", "1h") as daemon:
        _ = daemon.url
        data = Path(daemon.wait_for_event("store found")["store"])
        assert data.exists()
        yield daemon
        assert daemon.stop() == 0
        assert not data.exists()


def move(dev: Daemon, **fields: Any) -> dict[str, Any]:
    answer = post(dev.url, "/dev/clock", fields, timeout_s=60)
    assert answer.status == 200, answer
    return dict(answer.body)


def test_a_task_of_next_month_is_delivered_when_the_clock_is_moved(dev: Daemon, receiver: Receiver) -> None:
    """It is signed with the time of the receiver's clock; its id is remembered for a week of the moved clock."""
    task = create(dev.url, id="next-month", callback=receiver.url(), delay=30 * DAY_S)
    assert move(dev, advance=29 * DAY_S, settle=True)["settled"] is True
    assert receiver.calls == []
    moved = run_command("dev", "advance", "1d", "--url", dev.url)
    assert moved.returncode == 0, moved
    (delivery,) = wait_until(lambda: receiver.calls_of(task), "the delivery")
    assert abs(int(delivery.headers["webhook-timestamp"]) - time.time()) < 60
    wait_until(lambda: post(dev.url, "/query", {"id": task}).body.get("ended"), "its end")
    assert move(dev, advance=8 * DAY_S)["now"] > moved.stdout
    wait_until(lambda: "ended" not in post(dev.url, "/query", {"id": task}).body, "that its id is forgotten")
    assert get(dev.url, "/readyz").body == {"status": "ready"}


def test_a_stepwise_move_stops_at_each_retry_and_at_the_end_of_a_ttl(dev: Daemon, receiver: Receiver) -> None:
    receiver.rules["/failing"] = status(500)
    failing = create(dev.url, topic="failing", callback=receiver.url("/failing"), delay=DAY_S)
    call(dev.url, "POST", "/topics/paused/pause")
    expiring = create(dev.url, topic="paused", callback=receiver.url(), ttl=2 * DAY_S)
    stepped = run_command("dev", "advance", "10d", "--step", "--url", dev.url, "--wait", "60s")
    assert stepped.returncode == 0, stepped
    assert receiver.attempts(failing) == [1, 2, 3]
    deaths = [list_dead(dev.url, topic)[0] for topic in ("failing", "paused")]
    assert [death["id"] for death in deaths] == [failing, expiring]
    assert [death["last_error"]["reason"] for death in deaths] == ["exhausted", "expired"]
    created = query(dev.url, failing)["creat_time"]
    assert [died_after_h(death, created) for death in deaths] == [24 + 1 + 1, 48]
    assert receiver.attempts(expiring) == []


def test_a_schedule_fires_on_each_day_of_a_stepwise_month(dev: Daemon, receiver: Receiver) -> None:
    schedule = {"cron": "0 9 * * *", "topic": "report", "callback": receiver.url()}
    assert call(dev.url, "PUT", "/schedules/report", schedule).status == 200
    assert move(dev, advance=30 * DAY_S, step=True, settle=60)["settled"] is True
    times = [call.headers["later-scheduled"] for call in receiver.calls]
    assert len(times) == 30
    assert times == sorted({f"{time[:10]}T09:00:00.000Z" for time in times})


def died_after_h(task: dict[str, Any], created: float) -> int:
    died = time.strptime(task["died_at"][:19], "%Y-%m-%dT%H:%M:%S")
    return round((time.mktime(died) - time.timezone - created) / 3600)


def test_the_lease_of_a_consumer_ends_by_the_moved_clock(dev: Daemon) -> None:
    call(dev.url, "PATCH", "/topics/pulled/policy", {"deliver": "pull", "claim_lease": 600})
    task = create_pulled(dev)
    claimed = claim(dev, wait=20)
    assert [claimed["id"], claimed["attempt"]] == [task, 1]
    move(dev, advance=300)
    assert post(dev.url, "/extend", {"leases": [claimed["lease"]], "lease": 600}).body["lost"] == []
    move(dev, advance=601)
    again = claim(dev, wait=20)
    assert [again["id"], again["attempt"]] == [task, 2]
    assert post(dev.url, "/ack", {"leases": [claimed["lease"]]}).body["lost"] == [claimed["lease"]]


def create_pulled(dev: Daemon) -> str:
    def created() -> Answer | None:
        answer = post(dev.url, "/create", {"topic": "pulled"})
        return answer if answer.status == 200 else None

    answer = wait_until(created, "a create in the pulled topic")
    assert answer is not None
    return str(answer.body["id"])


def claim(dev: Daemon, wait: float) -> dict[str, Any]:
    answer = post(dev.url, "/claim", {"topics": ["pulled"], "wait": wait}, timeout_s=60)
    assert answer.status == 200, answer
    (task,) = answer.body["tasks"]
    return dict(task)


def test_a_moved_clock_stays_moved_and_no_other_daemon_uses_its_store(folder: Path, data: Path) -> None:
    with run_daemon("dev", folder, "--data", str(data)) as dev:
        moved = move(dev, advance=30 * DAY_S)["now"]
        assert dev.stop() == 0
    with run_daemon("up", folder, "--data", str(data)) as up:
        assert up.wait_for_exit() == 1
        assert "this is the store of a `later dev`, whose clock is moved" in up.log.read_text()
    with run_daemon("dev", folder, "--data", str(data)) as dev:
        assert get(dev.url, "/dev/clock").body["now"] > moved
        assert run_command("dev", "clock", "--url", dev.url).stdout > moved
        made = run_command("keys", "create", "test", "--scopes", "create", "--expires", "1d", "--data", str(data))
        assert made.returncode == 0, made


def test_the_clock_of_an_ordinary_daemon_cannot_be_moved(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        assert post(up.url, "/dev/clock", {"advance": 1}).status == 404
        assert run_command("dev", "clock", "--url", up.url).returncode == 1
        assert up.stop() == 0
    with run_daemon("dev", folder, "--data", str(data)) as dev:
        assert dev.wait_for_exit() == 1
        assert "this is the store of an ordinary daemon" in dev.log.read_text()
