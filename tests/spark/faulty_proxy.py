"""A proxy between Spark and a daemon, by which requests and answers go astray."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.system.waiting import POLL_INTERVAL_S

BATCHES = "/create/batch"
TIMEOUT_S = 60


class Answer(NamedTuple):
    status: int
    body: bytes


class ProxiedRequest(BaseHTTPRequestHandler):
    """A request on its way. What a mishap does not answer is cut off."""

    server: _Server
    body = b""

    def forward(self, body: bytes | None = None) -> Answer:
        """What the daemon answers to this body, or to what came: the work is done."""
        connection = HTTPConnection(self.server.daemon_address, timeout=TIMEOUT_S)
        try:
            headers = {name: self.headers[name] for name in ("Content-Type",) if name in self.headers}
            connection.request(self.command, self.path, self.body if body is None else body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()

    def answer(self, answer: Answer, headers: Mapping[str, str] | None = None, cut: int = 0) -> None:
        """Send it, without its last `cut` bytes."""
        self.send_response(answer.status)
        for name, value in {**(headers or {}), "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) - cut])

    def do_GET(self) -> None:
        self.answer(self.forward())

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.startswith(BATCHES):
            pass_through(self)
            return
        try:
            self.server.proxy.next_fault(self.body)(self)
        finally:
            self.server.proxy.on_request_end()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


Fault = Callable[[ProxiedRequest], None]


def pass_through(passage: ProxiedRequest) -> None:
    """None."""
    passage.answer(passage.forward())


def drop_answer(passage: ProxiedRequest) -> None:
    """The work is done, and nobody hears of it."""
    passage.forward()


def truncate_answer(passage: ProxiedRequest) -> None:
    """The work is done, and half of the answer arrives."""
    answer = passage.forward()
    passage.answer(answer, cut=len(answer.body) // 2)


def delay_until(ready: Callable[[], object]) -> Fault:
    """Done and answered as ever, but not before this is the case."""

    def mishap(passage: ProxiedRequest) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not ready() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        pass_through(passage)

    return mishap


def reject_for_now(status: int, retry_after: str = "0") -> Fault:
    """Nothing is done: the caller is to come again."""

    def mishap(passage: ProxiedRequest) -> None:
        passage.answer(_problem(status, "come again"), {"Retry-After": retry_after})

    return mishap


def reject(passage: ProxiedRequest) -> None:
    """Nothing is done, and no use in coming again: who sent it fails."""
    passage.answer(_problem(400, "the proxy has a bad day"))


def create_half(passage: ProxiedRequest) -> None:
    """Of the items, the first half is created, and the others answered as if their part of the store were away."""
    lines = passage.body.splitlines()
    answer = passage.forward(b"\n".join(lines[: len(lines) // 2]))
    told = json.loads(answer.body)
    away = {"error": {"status": 503, "detail": "this part of the store is away"}}
    failed = len(lines) - len(told["results"])
    told |= {"failed": failed, "results": told["results"] + [away] * failed}
    passage.answer(Answer(200, json.dumps(told).encode()), {"Content-Type": "application/json"})


class FaultyProxy:
    """The n-th batch of tasks meets the n-th mishap; those after the last one, and all else, get through.

    What was told to `hold` stands until the proxy ends, and is cut off then.
    """

    def __init__(self, url: str, *mishaps: Fault) -> None:
        self.batches: list[bytes] = []
        """Those that have come."""
        self.is_holding = threading.Event()
        """Is one held?"""
        self._ended = 0
        self._over = threading.Event()
        self._mishaps = mishaps
        self._lock = threading.Lock()
        self._server = _Server(self, urlsplit(url).netloc)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def repeated_batches(self) -> int:
        """How many batches came that had come before."""
        return len(self.batches) - len({*self.batches})

    def next_fault(self, batch: bytes) -> Fault:
        with self._lock:
            self.batches.append(batch)
            number = len(self.batches)
            return self._mishaps[number - 1] if number <= len(self._mishaps) else pass_through

    @property
    def is_idle(self) -> bool:
        """Is no batch under way?"""
        with self._lock:
            return self._ended == len(self.batches)

    def on_request_end(self) -> None:
        with self._lock:
            self._ended += 1

    def hold(self, passage: ProxiedRequest) -> None:
        """Nothing is done, nothing answered."""
        self.is_holding.set()
        self._over.wait(TIMEOUT_S)

    def hold_after(self, batches: int) -> None:
        """Let so many batches through, and hold those behind them."""
        self._mishaps = (*[pass_through] * batches, *[self.hold] * 1000)

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: FaultyProxy, daemon_address: str) -> None:
        self.proxy = proxy
        self.daemon_address = daemon_address
        super().__init__(("127.0.0.1", 0), ProxiedRequest)


@contextmanager
def run_proxy(url: str, *mishaps: Fault) -> Iterator[FaultyProxy]:
    """A proxy to the daemon at `url`."""
    with FaultyProxy(url, *mishaps).running() as proxy:
        yield proxy


def _problem(status: int, detail: str) -> Answer:
    return Answer(status, json.dumps({"status": status, "detail": detail}).encode())
