"""The smallest possible delivery: what aiohttp's client alone needs for requests like later's."""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import aiohttp
import msgspec
import uvloop
from yarl import URL

HEADERS = {"Content-Type": "application/json", "User-Agent": "later/0.0.0", "Accept-Encoding": "identity"}
Call = tuple[bytes, dict[str, str]]


def build_calls(count: int, at: float) -> list[Call]:
    """Return the body and headers of each call, built before the measurement."""
    due = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    task = {
        "later-due": due,
        "later-created": due,
        "later-timeout": "15",
        "later-failures": "0",
        "later-max-retry": "3",
    }
    calls: list[Call] = []
    for _ in range(count):
        id = str(uuid.uuid4())
        headers = {"webhook-id": id, "webhook-timestamp": str(int(at)), "later-attempt": "1"} | task
        calls.append((msgspec.json.encode({"id": id, "topic": "order", "content": "hello"}), headers))
    return calls


async def post_all(url: URL, calls: list[Call], at: float, coroutines: int) -> None:
    """Post the calls from `at` (Unix seconds) on, `coroutines` at a time, and read each answer."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers=HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,
    ) as session:
        remaining = iter(calls)
        await asyncio.sleep(at - time.time())
        await asyncio.gather(*(_post_until_empty(session, url, remaining) for _ in range(coroutines)))


async def _post_until_empty(session: aiohttp.ClientSession, url: URL, remaining: Iterator[Call]) -> None:
    for body, headers in remaining:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            await response.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", type=URL)
    parser.add_argument("posts", type=int)
    parser.add_argument("at", type=float, help="when to begin: Unix seconds")
    parser.add_argument("coroutines", type=int)
    options = parser.parse_args()
    calls = build_calls(options.posts, options.at)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(post_all(options.url, calls, options.at, options.coroutines))


if __name__ == "__main__":
    main()
