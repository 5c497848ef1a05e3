"""A receiver to try callbacks with: it prints each call and answers as configured."""

import argparse
import asyncio
import json
import socket
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from aiohttp import web
from yarl import URL

ANSWERS = """\
answers:
  100 to 199      200 with the body {"code": N}: 100 is done, 101 busy, any other failed
  200 to 599      this status with no body: 200 is done, 429 and 503 busy, 410 gone, any other failed
  hang            no answer; the caller must time out
  close           the connection is closed without an answer

paths, whatever --answer says:
  /success        100
  /busy           101
  /fail           500
  /gone           410
  /slow?s=5       the answer of --answer, 5 s later
  /flaky?n=3      500 to the first 3 calls of each webhook-id, then the answer of --answer

example:
  python scripts/receiver.py --port 8888 --answer 503 --retry-after 5
"""

PATHS = {"/success": "100", "/busy": "101", "/fail": "500", "/gone": "410"}
FAILURE = "500"
CONTENT_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """The answers to calls; `delay` is in seconds."""

    answer: str
    headers: dict[str, str]
    delay: float
    fail_first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A received call; `late_ms` is None if it had no due time."""

    id: str
    topic: str
    attempt: str
    content: str
    received_at: datetime
    late_ms: int | None


class Receiver:
    """A receiver that answers calls, counts the calls of each id and records their lateness."""

    def __init__(self, options: AnswerOptions, *, quiet: bool) -> None:
        self._options = options
        self._quiet = quiet
        self._calls: Counter[str] = Counter()
        self._lateness: list[int] = []

    async def handle(self, request: web.Request) -> web.Response:
        """Record the call, wait for the configured delay, and answer."""
        call = parse_call(request, await request.read())
        self._calls[call.id] += 1
        if call.late_ms is not None:
            self._lateness.append(call.late_ms)
        answer = choose_answer(request, self._options, self._calls[call.id])
        if not self._quiet:
            print(format_call(call, answer), flush=True)
        await asyncio.sleep(answer_delay(request, self._options))
        return await build_response(request, answer, self._options.headers)

    def summary(self) -> str:
        """Return the numbers of calls and ids, and how late the calls were."""
        counts = f"{self._calls.total()} calls, {len(self._calls)} ids"
        late = sorted(self._lateness)
        if not late:
            return counts
        median, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
        return f"{counts}; late by {median} ms (median), {p99} ms (99th percentile), {late[-1]} ms (worst)"


def parse_call(request: web.Request, body: bytes) -> Call:
    """Return the call in a request; missing fields are `?`. An event for operators has a type and data instead."""
    fields = parse_object(body)
    now = datetime.now(UTC)
    return Call(
        id=request.headers.get("webhook-id") or str(fields.get("id", "?")),
        topic=str(fields.get("topic", fields.get("type", "?"))),
        attempt=request.headers.get("later-attempt", "?"),
        content=str(fields.get("content", fields.get("data", ""))),
        received_at=now,
        late_ms=lateness_ms(request.headers.get("later-due"), now),
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the body's JSON object; an empty one for anything else."""
    try:
        fields = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def lateness_ms(due: str | None, now: datetime) -> int | None:
    """Return the milliseconds between the due time (RFC 3339) and now, by this machine's clock."""
    try:
        return round((now - datetime.fromisoformat(due or "")).total_seconds() * 1000)
    except (TypeError, ValueError):
        return None


def choose_answer(request: web.Request, options: AnswerOptions, nth: int) -> str:
    """Return the answer to the n-th call of one id."""
    fail_first = options.fail_first
    if request.path == "/flaky":
        fail_first = int(query_number(request, "n", 1))
    if nth <= fail_first:
        return FAILURE
    return PATHS.get(request.path, options.answer)


def answer_delay(request: web.Request, options: AnswerOptions) -> float:
    """Return how long to wait before the answer, in seconds."""
    return query_number(request, "s", 5) if request.path == "/slow" else options.delay


def query_number(request: web.Request, name: str, default: float) -> float:
    """Return a number from the query string."""
    try:
        return float(request.query.get(name, default))
    except ValueError:
        raise web.HTTPBadRequest(text=f"{name}: expected a number\n") from None


async def build_response(request: web.Request, answer: str, headers: dict[str, str]) -> web.Response:
    """Return the answer as HTTP; `hang` returns only when the caller has gone."""
    if answer == "hang":
        await asyncio.Event().wait()
    if answer == "close" and request.transport is not None:
        request.transport.abort()
    if answer in ("hang", "close"):
        return web.Response()
    number = int(answer)
    if number < 200:
        return web.json_response({"code": number}, headers=headers)
    return web.Response(status=number, headers=headers)


def format_call(call: Call, answer: str) -> str:
    """Return a line of text about one call."""
    late = "" if call.late_ms is None else f"  {call.late_ms:+d} ms"
    content = call.content if len(call.content) <= CONTENT_SHOWN else f"{call.content[:CONTENT_SHOWN]}…"
    time = call.received_at.astimezone().isoformat(sep=" ", timespec="milliseconds")[11:23]
    return f"{time}  {call.id}  {call.topic}  attempt {call.attempt}{late}  {content!r}  → {answer}"


def parse_answer(text: str) -> str:
    """Parse the value of --answer."""
    if text in ("hang", "close") or (text.isdecimal() and 100 <= int(text) <= 599):
        return text
    raise argparse.ArgumentTypeError(f"expected 100 to 599, hang or close, got {text!r}")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=ANSWERS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8888, help="port to listen on; 0: any free one (default: %(default)s)")
    add("--answer", type=parse_answer, default="100", help="see below (default: %(default)s)")
    add("--retry-after", metavar="N", help="send Retry-After with each answer: seconds or an HTTP date")
    add("--later-after", metavar="S", help="send later-after with each answer: this task again in S seconds")
    add("--reason", default="", metavar="TEXT", help="send later-reason with each answer")
    add("--delay", type=float, default=0.0, metavar="S", help="answer S seconds late (default: 0)")
    add("--fail-first", type=int, default=0, metavar="N", help="answer 500 to the first N calls of each id")
    add("--quiet", action="store_true", help="print only a summary at the end")
    return parser


def listen(host: str, port: int) -> socket.socket:
    """Listen on the first address of a host; port 0 is any free one."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def main() -> None:
    """Receive until Ctrl-C."""
    args = build_parser().parse_args()
    headers = {"Retry-After": args.retry_after, "later-after": args.later_after, "later-reason": quote(args.reason)}
    options = AnswerOptions(
        answer=args.answer,
        headers={name: value for name, value in headers.items() if value},
        delay=args.delay,
        fail_first=args.fail_first,
    )
    receiver = Receiver(options, quiet=args.quiet)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    with listen(args.host, args.port) as listener:
        url = URL.build(scheme="http", host=args.host, port=listener.getsockname()[1])
        print(f"receiving on {url}", flush=True)
        web.run_app(
            app,
            sock=listener,
            print=None,
            access_log=None,
            handler_cancellation=True,  # otherwise every caller that gives up on `hang` leaves a task behind
            shutdown_timeout=0.1,
        )
    print(receiver.summary(), flush=True)


if __name__ == "__main__":
    main()
