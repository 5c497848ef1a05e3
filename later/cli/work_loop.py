"""The loop of `later work`: claims tasks, runs a command for each, keeps their leases, and says what became of them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from later.cli.console import notify
from later.cli.task_command import RELEASE_STATUS, TaskCommand
from later.client.consumer import ClaimedJson, Consumer
from later.core.errors import CallFailed, Unavailable
from later.core.lease import MAX_CLAIMED

POLL_S = 20.0
"""How long a claim waits for tasks."""
TICK_S = 0.05
RETRY_S = 1.0
"""The pause after a call that may work later, and after a task that was given back: it is due again at once."""
KILL_AFTER_S = 5.0
"""How long commands have to end after SIGTERM."""


class WorkOptions(NamedTuple):
    """The options of `later work`: `slots` commands at a time. With `until_empty` it ends when nothing is due."""

    topic: str
    command: Sequence[str]
    slots: int
    lease_s: float
    grace_s: float
    until_empty: bool


class WorkLoop:
    """Runs a command for each task of a topic until it is stopped. `connect` makes a consumer for each thread."""

    def __init__(self, options: WorkOptions, connect: Callable[[], Consumer]) -> None:
        self._options = options
        self._claims, self._reports, self._extensions = connect(), connect(), connect()
        self._report_lock = threading.Lock()
        self._slots = threading.Semaphore(options.slots)
        self._runs: dict[str, TaskCommand] = {}
        self._runs_lock = threading.Lock()
        self._signals: list[int] = []
        self._is_stopping = threading.Event()
        self._is_away = False
        """True if the last claim failed, which is said once."""
        self._stop_at: float | None = None
        """When (s, monotonic) the commands that still run are told to end."""
        self._failure: Exception | None = None

    def on_signal(self, number: int, frame: object) -> None:
        """Stop: the first signal waits for commands, the second one does not."""
        self._signals.append(number)

    def run(self) -> None:
        """Work until a signal comes, or until nothing is due with `until_empty`.

        Raises:
            LaterError: tasks cannot be claimed at all.
            OSError: the command cannot be started.
        """
        claimer = threading.Thread(target=self._claim_until_stopped, daemon=True)
        claimer.start()
        extended_at = time.monotonic()
        while claimer.is_alive() or self._running():
            time.sleep(TICK_S)
            now = time.monotonic()
            if now - extended_at >= self._options.lease_s / 3:
                extended_at = now if self._extend() else now - self._options.lease_s / 3 + RETRY_S
            if self._signals:
                self._is_stopping.set()
                self._stop(claimer, now)
        if self._failure is not None:
            raise self._failure

    # Stopping

    def _stop(self, claimer: threading.Thread, now: float) -> None:
        """Cut the claim that waits; after the grace, or at a second signal, end the commands."""
        if claimer.is_alive():
            self._claims.abort()
        if self._stop_at is None:
            self._stop_at = now + self._options.grace_s
        if len(self._signals) > 1:
            self._stop_at = min(self._stop_at, now)
        if now >= self._stop_at:
            number = signal.SIGTERM if now < self._stop_at + KILL_AFTER_S else signal.SIGKILL
            for run in self._running().values():
                if not run.ended_by_us or number is signal.SIGKILL:
                    run.end(number)

    # Claiming

    def _claim_until_stopped(self) -> None:
        try:
            while not self._is_stopping.is_set():
                free = self._take_slots()
                tasks = self._claim(free) if free else []
                for _ in range(free - len(tasks)):
                    self._slots.release()
                for position, task in enumerate(tasks):
                    if not self._start(task):
                        self._report("release", tasks[position:])
                        return
                if not tasks and free and self._options.until_empty:
                    return
        except Exception as error:  # raised again by the main thread, when the commands have ended
            self._failure = error

    def _take_slots(self) -> int:
        """Wait for a free slot, take all that are free, and return how many."""
        free = 0
        if self._slots.acquire(timeout=TICK_S):
            free = 1
            while self._slots.acquire(blocking=False):
                free += 1
        return free

    def _claim(self, limit: int) -> list[ClaimedJson]:
        """Return claimed tasks; none if the API is away, after a pause.

        Raises:
            CallFailed: the API refuses the claim; or it is away, with `until_empty`.
        """
        options = self._options
        wait_s = 0.0 if options.until_empty else POLL_S
        try:
            tasks = self._claims.claim([options.topic], min(limit, MAX_CLAIMED), lease_s=options.lease_s, wait_s=wait_s)
        except Unavailable as error:
            if self._options.until_empty:
                raise
            if not self._is_stopping.is_set():
                if not self._is_away:
                    notify(f"{error}: trying again each second")
                self._is_away = True
                self._is_stopping.wait(max(RETRY_S, (error.retry_after_ms or 0) / 1000))
            return []
        if self._is_away:
            notify("tasks can be claimed again")
        self._is_away = False
        return tasks

    def _start(self, task: ClaimedJson) -> bool:
        """Start the command for a task; return False if that cannot be done, or we are stopping."""
        if self._is_stopping.is_set():
            return False
        try:
            run = TaskCommand(self._options.command, task)
        except OSError as error:
            self._failure = error
            return False
        with self._runs_lock:
            self._runs[task.lease] = run
        threading.Thread(target=self._finish, args=(run,)).start()
        return True

    # Commands

    def _running(self) -> dict[str, TaskCommand]:
        """Return the commands that run, by the leases of their tasks."""
        with self._runs_lock:
            return dict(self._runs)

    def _finish(self, run: TaskCommand) -> None:
        """Wait for a command's end, and say what it means for the task."""
        status, task = run.wait(), run.task
        try:
            if run.is_lost:
                pass
            elif run.ended_by_us or status == RELEASE_STATUS:
                self._report("release", [task])
                self._is_stopping.wait(RETRY_S)
            elif status == 0:
                self._report("ack", [task])
            else:
                message = run.why_failed(status)
                notify(f"{task.id} failed: {message}")
                self._report("nack", [task], message)
        finally:
            with self._runs_lock:
                del self._runs[task.lease]
            self._slots.release()

    def _report(self, call: str, tasks: Sequence[ClaimedJson], message: str = "") -> None:
        """Say what became of tasks, until the API is there or their leases must have ended."""
        leases = [task.lease for task in tasks]
        until = time.monotonic() + self._options.lease_s
        while True:
            try:
                with self._report_lock:
                    if call == "nack":
                        lost = self._reports.nack(leases, message=message)
                    else:
                        lost = (self._reports.ack if call == "ack" else self._reports.release)(leases)
                break
            except CallFailed as error:
                if not isinstance(error, Unavailable) or time.monotonic() >= until:
                    notify(f"{call} of {', '.join(task.id for task in tasks)} failed: {error}")
                    return
                time.sleep(RETRY_S)
        for task in tasks:
            if task.lease in lost:
                notify(f"{task.id}: its lease was lost before its {call}, so it may be done again")

    def _extend(self) -> bool:
        """Extend the leases of all tasks whose commands run, and end those whose leases were lost."""
        runs = self._running()
        if not runs:
            return True
        try:
            lost = self._extensions.extend([*runs], self._options.lease_s)
        except CallFailed as error:
            notify(f"leases not extended: {error}")
            return False
        for lease in lost:
            if (run := self._running().get(lease)) is not None:  # otherwise it has ended meanwhile
                notify(f"{run.task.id}: its lease was lost: its command is told to end")
                run.is_lost = True
                run.end(signal.SIGTERM)
        return True
