"""The environment of a benchmark: numbers of tasks and durations, installed programs, a directory."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Durations (seconds, `_s`) and numbers of tasks."""

    warm_up_s: float
    """0: no warm-up."""
    load_s: float
    pairs: int
    """Pairs of turns in each start of two variants."""
    turn_s: float
    """Duration of a turn of requests."""
    turn_tasks: int
    """Tasks due at the same instant in a turn of deliveries."""
    turn_lead_s: float
    """Time between seeding a store and the due time of a turn, besides the time for each task."""
    queried: int
    """Tasks to query."""
    claimed: int
    """Tasks that consumers claim one at a time."""
    waits: int
    """Claims that wait for a task."""
    waiters: int
    """Claims that wait, where no task comes."""
    waiters_s: float
    batched: int
    """Tasks created in batches."""
    bulk_rows: int
    """Rows from which Spark creates tasks."""
    due_together: int
    """Tasks due at the same instant."""
    due_on_topics: int
    """Tasks due at the same instant, spread over topics."""
    topics: tuple[int, ...]
    origins: tuple[int, ...]
    faulty: int
    """Tasks to a host that fails or hangs."""
    lateness_s: float
    console_tasks: int
    """Tasks in the store of open consoles."""
    console_topics: int
    million: int
    """Tasks due in the same second."""
    memory_tasks: int
    """Tasks whose memory is measured."""
    pending: int
    """Tasks in a full store."""
    moved: int
    """Tasks created and claimed in a full store."""
    idle_s: float
    sweep: tuple[int, ...]
    """Rates to measure, tasks per second."""
    sweep_s: float
    lead_s: float
    """Time between seeding a store and the first due time."""


FULL = Sizes(
    warm_up_s=1.0,
    load_s=4.0,
    pairs=4,
    turn_s=1.0,
    turn_tasks=5_000,
    turn_lead_s=0.75,
    queried=100_000,
    claimed=25_000,
    waits=512,
    waiters=1_000,
    waiters_s=30.0,
    batched=1_000_000,
    bulk_rows=1_000_000,
    due_together=20_000,
    due_on_topics=100_000,
    topics=(1, 1_000, 100_000),
    origins=(1, 10_000),
    faulty=10_000,
    lateness_s=10.0,
    console_tasks=1_000_000,
    console_topics=10_000,
    million=1_000_000,
    memory_tasks=1_000_000,
    pending=5_000_000,
    moved=200_000,
    idle_s=15.0,
    sweep=(50, 100, 200, 500, 1000, 2000, 4000, 8000),
    sweep_s=6.0,
    lead_s=2.0,
)
QUICK = Sizes(
    warm_up_s=0.0,
    load_s=1.0,
    pairs=2,
    turn_s=0.5,
    turn_tasks=1_000,
    turn_lead_s=3.0,
    queried=10_000,
    claimed=2_000,
    waits=64,
    waiters=100,
    waiters_s=2.0,
    batched=50_000,
    bulk_rows=50_000,
    due_together=5_000,
    due_on_topics=5_000,
    topics=(1, 100, 5_000),
    origins=(1, 500),
    faulty=1_000,
    lateness_s=2.0,
    console_tasks=20_000,
    console_topics=500,
    million=20_000,
    memory_tasks=50_000,
    pending=100_000,
    moved=20_000,
    idle_s=2.0,
    sweep=(100, 1000),
    sweep_s=1.0,
    lead_s=1.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The environment that all rows are measured in."""

    sizes: Sizes
    store_program: Path
    """The server program of all stores."""
    durabilities: Sequence[str]
    wrk: str | None
    nginx: str | None
    node: str | None
    """None also without npm."""
    pip: str | None
    folder: Path

    @property
    def missing(self) -> list[str]:
        """The programs that are not installed, and their replacements."""
        replacements = (
            ("wrk", self.wrk, "the load comes from a generator in Python, which takes more CPU time"),
            ("nginx", self.nginx, "deliveries go to a receiver in Python, which takes more CPU time"),
            ("Node with npm", self.node, "BullMQ is not measured"),
            ("pip", self.pip, "arq is not measured"),
        )
        return [f"{name} is not installed: {replacement}" for name, path, replacement in replacements if path is None]

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """Create a directory for one run and remove it at the end."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield Path(name)


def find_node() -> str | None:
    """Return the path of Node, if npm is installed, too."""
    return shutil.which("node") if shutil.which("npm") else None


def find_pip() -> str | None:
    """Return the path of the pip of this Python, or else of another one: what it installs needs no compiler."""
    own = Path(sys.executable).with_name("pip")
    return str(own) if own.exists() else shutil.which("pip3")


def find_nginx() -> str | None:
    """Return the path of nginx. Debian installs it in a directory that only root's PATH names."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
