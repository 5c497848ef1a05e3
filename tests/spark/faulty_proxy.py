"""A proxy between Spark and a daemon that loses, delays and changes requests and answers."""

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
    """A request to the daemon. If a fault does not answer it, the connection is closed."""

    server: _Server
    body = b""

    def forward(self, body: bytes | None = None) -> Answer:
        """Send the request, or another body, to the daemon, and return its answer."""
        connection = HTTPConnection(self.server.daemon_address, timeout=TIMEOUT_S)
        try:
            headers = {name: self.headers[name] for name in ("Content-Type",) if name in self.headers}
            connection.request(self.command, self.path, self.body if body is None else body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()

    def answer(self, answer: Answer, headers: Mapping[str, str] | None = None, cut: int = 0) -> None:
        """Send an answer, without its last `cut` bytes."""
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
        """Log nothing."""


Fault = Callable[[ProxiedRequest], None]


def pass_through(request: ProxiedRequest) -> None:
    """Forward the request and the answer: no fault."""
    request.answer(request.forward())


def drop_answer(request: ProxiedRequest) -> None:
    """Forward the request and drop the answer."""
    request.forward()


def truncate_answer(request: ProxiedRequest) -> None:
    """Forward the request and send half of the answer."""
    answer = request.forward()
    request.answer(answer, cut=len(answer.body) // 2)


def delay_until(ready: Callable[[], object]) -> Fault:
    """Return the fault that forwards the request only when `ready` returns true."""

    def fault(request: ProxiedRequest) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not ready() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        pass_through(request)

    return fault


def reject_for_now(status: int, retry_after: str = "0") -> Fault:
    """Return the fault that asks the caller to try again, without forwarding the request."""

    def fault(request: ProxiedRequest) -> None:
        request.answer(_problem(status, "try again"), {"Retry-After": retry_after})

    return fault


def reject(request: ProxiedRequest) -> None:
    """Refuse the request for good, without forwarding it."""
    request.answer(_problem(400, "refused by the proxy"))


def create_half(request: ProxiedRequest) -> None:
    """Forward the first half of the items, and answer the others as if their shard were unavailable."""
    lines = request.body.splitlines()
    answer = request.forward(b"\n".join(lines[: len(lines) // 2]))
    result = json.loads(answer.body)
    unavailable = {"error": {"status": 503, "detail": "this shard is unavailable"}}
    failed = len(lines) - len(result["results"])
    result |= {"failed": failed, "results": result["results"] + [unavailable] * failed}
    request.answer(Answer(200, json.dumps(result).encode()), {"Content-Type": "application/json"})


class FaultyProxy:
    """A proxy that applies the n-th fault to the n-th batch of tasks; all other requests are forwarded.

    Requests with the fault `hold` wait until the proxy ends; then their connections are closed.
    """

    def __init__(self, url: str, *faults: Fault) -> None:
        self.batches: list[bytes] = []
        """The bodies of the batches received."""
        self.is_holding = threading.Event()
        """Set when a request is on hold."""
        self._answered = 0
        self._ending = threading.Event()
        self._faults = faults
        self._lock = threading.Lock()
        self._server = _Server(self, urlsplit(url).netloc)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def repeated_batches(self) -> int:
        """The number of batches that were received before."""
        return len(self.batches) - len({*self.batches})

    def next_fault(self, batch: bytes) -> Fault:
        with self._lock:
            self.batches.append(batch)
            number = len(self.batches)
            return self._faults[number - 1] if number <= len(self._faults) else pass_through

    @property
    def is_idle(self) -> bool:
        """True if no batch is in flight."""
        with self._lock:
            return self._answered == len(self.batches)

    def on_request_end(self) -> None:
        with self._lock:
            self._answered += 1

    def hold(self, request: ProxiedRequest) -> None:
        """Neither forward nor answer the request until the proxy ends."""
        self.is_holding.set()
        self._ending.wait(TIMEOUT_S)

    def hold_after(self, batches: int) -> None:
        """Forward the next `batches` batches, and hold those after them."""
        self._faults = (*[pass_through] * batches, *[self.hold] * 1000)

    @contextmanager
    def running(self) -> Iterator[FaultyProxy]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._ending.set()
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
def run_proxy(url: str, *faults: Fault) -> Iterator[FaultyProxy]:
    """Run a proxy to the daemon at `url`."""
    with FaultyProxy(url, *faults).running() as proxy:
        yield proxy


def _problem(status: int, detail: str) -> Answer:
    return Answer(status, json.dumps({"status": status, "detail": detail}).encode())
