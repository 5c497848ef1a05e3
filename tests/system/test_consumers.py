"""Consumers of a running daemon: `later work` and its commands, and claims that wait in other processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.api_client import call, create, get, post, query
from tests.system.daemons import COMMAND, Daemon, environment, run_up, shards_option
from tests.system.waiting import wait_until

SCRIPT = """
content=$(cat)
echo "$LATER_TOPIC $LATER_ID $LATER_ATTEMPT $content" >> "$OUT"
case $content in
    fail) echo first >&2; echo "no disk" >&2; exit 3;;
    busy) [ "$LATER_ATTEMPT" = 1 ] && [ ! -e "$OUT.busy" ] && touch "$OUT.busy" && exit 75;;
    long) sleep 5;;
    stuck) trap "" TERM; while :; do sleep 0.1; done;;
esac
exit 0
"""


@pytest.fixture
def up(folder: Path, data: Path, processes: int) -> Iterator[Daemon]:
    """Run `later up` with one process and one shard, or several of both; the topic `jobs` is pulled."""
    with run_up(folder, data, *shards_option(processes)) as up:
        assert call(up.url, "PATCH", "/topics/jobs/policy", {"deliver": "pull"}).status == 200
        yield up


def start_work(up: Daemon, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "work", "jobs", *options, "--", "sh", "-c", SCRIPT]
    env = {**environment(), "LATER_URL": up.url, "OUT": str(out)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)


def lines(out: Path) -> list[str]:
    return out.read_text().splitlines() if out.exists() else []


def state(up: Daemon, id: str) -> str:
    answer = post(up.url, "/query", {"id": id})
    return str(answer.body["state"]) if answer.status == 200 else "gone"


def test_a_command_does_tasks_and_its_end_decides_on_them(up: Daemon, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for content in ("plain", "fail", "busy", "long"):
        create(up.url, topic="jobs", id=content, content=content, callback=None)
    with start_work(up, out, "-n", "4", "--lease", "3s") as work:
        try:
            wait_until(lambda: state(up, "fail") == "error", "a task to fail")
            failed = query(up.url, "fail")
            wait_until(lambda: [state(up, id) for id in ("plain", "busy", "long")] == ["gone"] * 3, "tasks to be done")
            create(up.url, topic="jobs", id="woken", content="woken", callback=None)
            wait_until(lambda: state(up, "woken") == "gone", "a task that is created while the command waits")
            create(up.url, topic="jobs", id="stuck", content="stuck", callback=None)
            wait_until(lambda: len(lines(out)) == 7, "the last command to run")
            work.send_signal(signal.SIGTERM)
            work.send_signal(signal.SIGINT)
            assert work.wait(20) == 0
        finally:
            work.kill()
        assert work.stderr is not None
        assert "first\nno disk\n" in work.stderr.read()
    assert sorted(line.rpartition(" ")[0] for line in lines(out)) == [
        "jobs busy 1", "jobs busy 1", "jobs fail 1", "jobs long 1", "jobs plain 1", "jobs stuck 1", "jobs woken 1",
    ]  # fmt: skip
    assert (failed["state"], failed["attempts"], failed["last_error"]["message"]) == ("error", 1, "no disk")
    stuck = query(up.url, "stuck")
    assert (stuck["state"], stuck["attempts"]) == ("delay", 0)


def program_of(language: str, folder: Path) -> list[str]:
    """Write the worker that the documents have in this language into a file, and return the command that runs it."""
    text = (Path(__file__).parent.parent.parent / "docs" / "pull.md").read_text()
    programs = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    file = folder / f"worker.{language}"
    if language == "sh":
        program = next(program for program in programs if program.startswith("#!/bin/sh"))
        file.write_text(program)
        return [*COMMAND, "work", "jobs", "-n", "4", "--", "sh", str(file)]
    file.write_text(programs[0])
    if language == "python":
        return [sys.executable, str(file)]
    program = folder / "worker"  # `go run` would pass no SIGTERM on
    subprocess.run(["go", "build", "-o", str(program), str(file)], env=os.environ, check=True, timeout=100)
    return [str(program)]


@pytest.mark.parametrize("language", ["sh", "python", "go"])
def test_the_documented_workers_work(up: Daemon, tmp_path: Path, language: str) -> None:
    if language == "go" and shutil.which("go") is None:
        pytest.skip("Go is not installed")
    for number in range(3):
        create(up.url, topic="jobs", id=f"t{number}", content="x")
    env = {**environment(), "LATER_URL": up.url}
    with subprocess.Popen(program_of(language, tmp_path), stdout=subprocess.PIPE, text=True, env=env) as worker:
        try:
            wait_until(lambda: [state(up, f"t{n}") for n in range(3)] == ["gone"] * 3, "tasks to be done", within_s=60)
            create(up.url, topic="jobs", id="woken", content="y")
            wait_until(lambda: state(up, "woken") == "gone", "a task that is created while the worker waits")
        finally:
            worker.terminate()
        assert worker.stdout is not None
        printed = worker.stdout.read()
    assert sorted(line.split()[1].strip(":") for line in printed.splitlines()) == ["t0", "t1", "t2", "woken"]


def test_a_claim_that_waits_is_answered_whichever_process_gets_the_create(up: Daemon) -> None:
    """The kernel spreads connections over processes, so that some claims wait elsewhere than their task is made."""
    answers: list[dict[str, Any]] = []

    def wait_for_a_task() -> None:
        answers.append(post(up.url, "/claim", {"topic": "jobs", "wait": 20}).body)

    claims = [threading.Thread(target=wait_for_a_task) for _ in range(6)]
    for claim in claims:
        claim.start()
    time.sleep(0.3)
    started = time.monotonic()
    for number in range(6):
        assert post(up.url, "/create", {"topic": "jobs", "id": f"t{number}"}).status == 200
    for claim in claims:
        claim.join(15)
    assert sorted(task["id"] for answer in answers for task in answer["tasks"]) == [f"t{n}" for n in range(6)]
    assert time.monotonic() - started < 8  # the look each second finds tasks whose signal was lost


def test_a_stop_answers_the_claims_that_wait(folder: Path, data: Path) -> None:
    with run_up(folder, data) as up:
        call(up.url, "PATCH", "/topics/jobs/policy", {"deliver": "pull"})
        answers: list[Any] = []
        claim = threading.Thread(target=lambda: answers.append(post(up.url, "/claim", {"topic": "jobs", "wait": 30})))
        claim.start()
        wait_until(lambda: "later_claim_waiters 1.0" in str(get(up.url, "/metrics").body), "the claim to wait")
        started = time.monotonic()
        os.kill(up.process.pid, signal.SIGTERM)
        claim.join(10)
        assert (answers[0].status, answers[0].body) == (200, {"tasks": [], "lost": []})
        assert time.monotonic() - started < 5
