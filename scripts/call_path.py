"""Count the functions, files and changes of file on one task's path from HTTP to settled.

`python -m scripts.call_path` runs `later up` in this process, on an embedded store in a temporary directory, and sends
it one task after another: `POST /create`, the delay ticker's claim, the delivery to a local receiver, the settle.
`sys.setprofile` records each call of a function of the package `later` on the event loop's thread.

Definitions:

- The *path* of a task begins with the request and ends when the delivery's slot is free again. The other tickers are
  left out, as are calls within libraries.
- An *entry* is a call of a function or the resumption of a coroutine that waited. Comprehensions belong to the
  function around them; lambdas are functions.
- The entries of one asyncio task, or of one callback of the event loop, are a *strand*; a strand keeps its order, and
  the strands follow one another in the order of their first entry.
- A *change of file* is an entry whose file is not that of the entry before it: a reader who follows the path turns to
  another file there.
- A *cross-file call* is a call (no resumption) whose nearest caller in `later` stands in another file.

The figures are the lowest of several tasks, after a warm-up: where the delay ticker looks a moment too early and looks
again, part of the path is counted twice. At commit 830dfa8 there were 150 functions in 32 files, 153 changes of file
and 104 cross-file calls; an earlier count of the same path, by hand, had 164 changes.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import redis

import later

PACKAGE = str(Path(later.__file__).parent) + os.sep
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
ROOTS = ("__main__", "cli/", "daemon/")
"""Files that run the event loop: they are below every frame and call nothing on a task's path."""
TICKER = "ticker-"
CLAIMING_TICKER = "ticker-delay"

WARM_UP = 3
MEASURED = 9
TIMEOUT_S = 30.0
SETTLED_WAIT_S = 0.05
"""The slot is certainly free so long after the settle."""


class Entry(NamedTuple):
    """A function that was called or resumed; `caller` is the file and function in `later` that called it."""

    strand: int
    file: str
    function: str
    resumed: bool
    caller: tuple[str, str] | None


class Measures(NamedTuple):
    """The figures of one task's path."""

    functions: float
    files: float
    changes: float
    changes_by_calls: float
    """Changes of file without the resumptions."""
    calls: float


class Recorder:
    """A recorder of the entries of one thread: the one that `profile` is installed in. It records while `recording`."""

    def __init__(self) -> None:
        self.recording = False
        self._entries: list[Entry] = []
        self._frames: dict[int, FrameType] = {}
        """Frames by id, kept so that no id is used again: a second call event of a frame is a resumption."""
        self._callbacks = 0

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if not self.recording or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name in COMPREHENSIONS:
            return
        caller = _caller(frame)
        strand = self._strand(is_root=caller is None)
        if strand is None:
            return
        resumed = id(frame) in self._frames
        self._frames[id(frame)] = frame
        file = code.co_filename.removeprefix(PACKAGE)
        self._entries.append(Entry(strand, file, code.co_qualname, resumed, caller))

    def start(self) -> None:
        self._entries, self._frames = [], {}
        self.recording = True

    def stop(self) -> list[Entry]:
        """Stop recording and return the entries, strand by strand."""
        self.recording = False
        first = {entry.strand: position for position, entry in reversed(list(enumerate(self._entries)))}
        return sorted(self._entries, key=lambda entry: first[entry.strand])

    def _strand(self, *, is_root: bool) -> int | None:
        """Return the number of the running strand; None for a ticker that does not claim."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        if task is None:
            self._callbacks += is_root
            return -self._callbacks
        if task.get_name().startswith(TICKER) and task.get_name() != CLAIMING_TICKER:
            return None
        return id(task)


def _caller(frame: FrameType) -> tuple[str, str] | None:
    """Return the file and name of the nearest caller in `later`; None where the event loop calls."""
    above = frame.f_back
    while above is not None:
        code = above.f_code
        if code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS:
            file = code.co_filename.removeprefix(PACKAGE)
            return None if file.startswith(ROOTS) else (file, code.co_qualname)
        above = above.f_back
    return None


class Receiver(BaseHTTPRequestHandler):
    """A receiver that answers done to each callback."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"code": 100}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:
        """Print nothing: the figures are the output."""


def measure(paths: list[list[Entry]]) -> Measures:
    """Return the lowest value of each figure over the paths of several tasks."""
    figures = [_measure_one(path) for path in paths]
    return Measures(*(min(column) for column in zip(*figures, strict=True)))


def _measure_one(path: list[Entry]) -> Measures:
    return Measures(
        functions=len({(entry.file, entry.function) for entry in path}),
        files=len({entry.file for entry in path}),
        changes=_count_changes(path),
        changes_by_calls=_count_changes([entry for entry in path if not entry.resumed]),
        calls=sum(not entry.resumed and entry.caller is not None and entry.caller[0] != entry.file for entry in path),
    )


def _count_changes(path: list[Entry]) -> int:
    return sum(before.file != entry.file for before, entry in pairwise(path))


def print_path(path: list[Entry]) -> None:
    """Print each entry of a path; `>` marks a change of file, `~` a resumption."""
    file = strand = None
    for entry in path:
        if entry.strand != strand:
            print("--- " + ("callback of the event loop" if entry.strand <= 0 else "asyncio task"))
        mark = ">" if file not in {None, entry.file} else " "
        caller = "" if entry.caller is None or entry.caller[0] == entry.file else f"  <- {' '.join(entry.caller)}"
        print(f"{mark}{'~' if entry.resumed else ' '} {entry.file:28} {entry.function}{caller}")
        file, strand = entry.file, entry.strand


def print_changes(path: list[Entry]) -> None:
    """Print how often the path changes from one file to another, most frequent first."""
    changes = Counter((before.file, entry.file) for before, entry in pairwise(path) if before.file != entry.file)
    for (source, target), count in changes.most_common():
        print(f"{count:4}  {source} -> {target}")


def run_tasks(recorder: Recorder, port: int, folder: Path) -> list[list[Entry]]:
    """Send the tasks one after another and return the recorded paths of those after the warm-up."""
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    body = {"topic": "order", "callback": f"http://127.0.0.1:{receiver.server_port}/", "content": "hello"}
    _wait_until_ready(port)
    api = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    paths = []
    with redis.Redis(unix_socket_path=str(folder / "store.sock")) as store:
        for _ in range(WARM_UP + MEASURED):
            recorder.start()
            api.request("POST", "/create", json.dumps(body), {"Content-Type": "application/json"})
            answer = api.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            _wait_until_settled(store)
            time.sleep(SETTLED_WAIT_S)
            paths.append(recorder.stop())
    return paths[WARM_UP:]


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "later does not listen"
            time.sleep(0.05)
        else:
            return


def _wait_until_settled(store: redis.Redis) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while store.hlen("{later:0}:pool"):
        assert time.monotonic() < deadline, "the task was not settled"
        time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Run later on this thread, the tasks on another; print the figures when they are there, and stop."""
    parser = argparse.ArgumentParser(description="Count the changes of file on one task's path.")
    parser.add_argument("--path", action="store_true", help="print each call and resumption of one path")
    parser.add_argument("--hot", action="store_true", help="print how often one file changes to another")
    options = parser.parse_args()
    recorder, port = Recorder(), _free_port()

    def measure_and_stop() -> None:
        try:
            paths = run_tasks(recorder, port, Path(folder))
            measures = measure(paths)
            typical = min(paths, key=lambda path: (abs(_measure_one(path).changes - measures.changes), len(path)))
            if options.path:
                print_path(typical)
            if options.hot:
                print_changes(typical)
            print(
                f"{measures.functions:.0f} functions in {measures.files:.0f} files, {measures.changes:.0f} changes of "
                f"file ({measures.changes_by_calls:.0f} without resumptions), {measures.calls:.0f} cross-file calls"
            )
            sys.stdout.flush()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory(prefix="later-") as folder:
        # A daemon ends with os._exit: the directory is removed by the parent process.
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        # With a long tick, the delay ticker runs because a task was created, not because time has passed.
        sys.argv = ["later", "up", "--data", folder, "--listen", f"127.0.0.1:{port}", "--tick", "10s"]
        threading.Thread(target=measure_and_stop, daemon=True).start()
        sys.setprofile(recorder.profile)
        runpy.run_module("later", run_name="__main__")
    return 1


if __name__ == "__main__":
    sys.exit(main())
