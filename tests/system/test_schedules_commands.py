"""`later schedules` against a running daemon, and what its schedules call."""

from __future__ import annotations

import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from tests.system.daemons import Daemon, run_command, run_up
from tests.system.receivers import Call, Receiver
from tests.system.waiting import wait_until

SILENCE_S = 1.5
"""How long nothing may come of a schedule of each second."""


def run(up: Daemon, *words: str) -> str:
    """Run a command of the group that succeeds, and return what it prints."""
    done = run_command("schedules", *words, "--url", up.url)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.rstrip("\n")


def scheduled_at(call: Call) -> float:
    """Return the time (Unix seconds) at which the schedule fired that has created the task."""
    return datetime.fromisoformat(call.headers["later-scheduled"]).timestamp()


def test_a_schedule_calls_until_it_is_paused_again_when_it_is_resumed_and_not_when_it_is_deleted(
    folder: Path, data: Path, receiver: Receiver
) -> None:
    with run_up(folder, data) as up:
        options = ("--every", "1s", "--topic", "tick", "--callback", receiver.url(), "--content", "hello")
        assert run(up, "put", "tick", *options).startswith("the schedule tick fires next at ")
        wait_until(lambda: len(receiver.ids) >= 3, "it fires three times")
        assert run(up, "put", "tick", *options).startswith("the schedule tick fires next at ")  # changes nothing

        assert run(up, "pause", "tick") == "the schedule tick is paused"
        paused_at = time.time()
        time.sleep(SILENCE_S)
        calls = receiver.calls.copy()
        times = sorted({scheduled_at(call) for call in calls})
        assert times[-1] <= paused_at
        assert all(later - earlier > 0.99 for earlier, later in pairwise(times))
        assert {call.id for call in calls} == {f"s:tick:{int(scheduled_at(call))}" for call in calls}
        assert {call.body["content"] for call in calls} == {"hello"}
        assert all(call.arrived >= scheduled_at(call) for call in calls)

        extra = run(up, "run-now", "tick")
        wait_until(lambda: extra in receiver.ids, "a task besides its times is delivered")
        assert run(up, "resume", "tick") == "the schedule tick is not paused"
        resumed_at = time.time()
        wait_until(lambda: max(map(scheduled_at, receiver.calls)) > resumed_at, "it fires again")

        assert run(up, "delete", "tick") == "tick"
        deleted_at = time.time()
        time.sleep(SILENCE_S)
        assert max(map(scheduled_at, receiver.calls)) <= deleted_at
        assert len(receiver.calls) == len(receiver.ids)
        assert run(up, "list", "--json") == ""
