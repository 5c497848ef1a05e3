"""Print a table of a process's CPU time by layer, from stacks sampled by py-spy.

    py-spy record --pid PID --duration 10 --rate 500 --format raw --output stacks.txt
    python -m scripts.bench.profile_by_layer stacks.txt --us 33.4

`--us` is the cost of a task: the CPU time of the process divided by the tasks, as `make bench` prints it.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

LAYERS: Sequence[tuple[str, str]] = (
    (r"_writelines \(aiohttp|\(aiohttp/http_writer", "aiohttp: writing to the socket (most of it in the kernel)"),
    (r"runners\.py", "uvloop and C: the loop, reading sockets, parsing HTTP"),
    (r"\(aiohttp/(client|connector)", "aiohttp: the client's request and response"),
    (r"\(aiohttp/web", "aiohttp: the server's request and response"),
    (r"\(aiohttp/", "aiohttp: payloads, streams, helpers"),
    (r"\(later/api/", "later/api: JSON, admission, answers"),
    (r"\(later/core/", "later/core: tasks, policies, verdicts"),
    (r"\(later/store/", "later/store: scripts' arguments and answers, group commit"),
    (r"\(later/worker/", "later/worker: delivery slots, fair share, tickers"),
    (r"\(later/delivery/", "later/delivery: the call"),
    (r"\(redis/|\(hiredis", "redis-py: the connection to the store"),
    (r"\(asyncio/", "asyncio: tasks, timeouts, streams"),
    (r"\(prometheus_client/", "prometheus_client: counters"),
)
REST = "the rest"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", type=Path, help="output of py-spy record --format raw")
    parser.add_argument("--us", type=float, required=True, help="cost of a task, in µs")
    options = parser.parse_args()
    print("\n".join(build_table(options.stacks.read_text().splitlines(), options.us)))


def build_table(stacks: Iterable[str], us_per_task: float) -> list[str]:
    """Return lines of Markdown: the µs per task and the share of each layer, largest first."""
    samples: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        samples[find_layer(stack.rpartition(";")[2])] += int(count)
    total = samples.total()
    rows = [
        f"| {name} | {us_per_task * count / total:.1f} | {count / total:.0%} |" for name, count in samples.most_common()
    ]
    return ["| where | µs | share |", "|---|---|---|", *rows, f"| in all | {us_per_task:.1f} | |"]


def find_layer(frame: str) -> str:
    """Return the layer of the running function, `name (file:line)`."""
    return next((name for pattern, name in LAYERS if re.search(pattern, frame)), REST)


if __name__ == "__main__":
    main()
