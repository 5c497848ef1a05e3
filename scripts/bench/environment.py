"""What a run of the bench is made with: the sizes, the programs that are there, a folder of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from later.config import OPTIONS

NO_PROCESSES = "this later has no --processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long and how many. `_s` are seconds."""

    warm_s: float
    """0: without."""
    load_s: float
    known: int
    """Ids to ask for."""
    batched: int
    """Tasks created in batches."""
    bulk: int
    """Rows that Spark makes tasks of."""
    together: int
    """Tasks due at the same instant."""
    lateness_s: float
    million: int
    weighed: int
    """Tasks whose memory is measured."""
    pending: int
    """Tasks that a full store holds."""
    moved: int
    """Tasks created and claimed in it."""
    idle_s: float
    sweep: tuple[int, ...]
    """Tasks a second."""
    sweep_s: float
    lead_s: float
    """From the filling of a store to the first due time."""


FULL = Scale(
    warm_s=1.0,
    load_s=4.0,
    known=100_000,
    batched=1_000_000,
    bulk=1_000_000,
    together=20_000,
    lateness_s=10.0,
    million=1_000_000,
    weighed=1_000_000,
    pending=5_000_000,
    moved=200_000,
    idle_s=15.0,
    sweep=(50, 100, 200, 500, 1000, 2000, 4000, 8000),
    sweep_s=6.0,
    lead_s=2.0,
)
QUICK = Scale(
    warm_s=0.0,
    load_s=1.0,
    known=10_000,
    batched=50_000,
    bulk=50_000,
    together=5_000,
    lateness_s=2.0,
    million=20_000,
    weighed=50_000,
    pending=100_000,
    moved=20_000,
    idle_s=2.0,
    sweep=(100, 1000),
    sweep_s=1.0,
    lead_s=1.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run of the bench."""

    scale: Scale
    server: Path
    """The store's program."""
    durabilities: Sequence[str]
    wrk: str | None
    nginx: str | None
    folder: Path

    @property
    def missing(self) -> list[str]:
        """What is not installed, and what is used instead."""
        instead = (
            ("wrk", self.wrk, "the load comes from a generator in Python, which takes more of the machine"),
            ("nginx", self.nginx, "deliveries go to a receiver in Python, which takes more of the machine"),
        )
        return [f"{name} is not installed: {told}" for name, found, told in instead if found is None]

    @contextmanager
    def a_folder(self) -> Iterator[Path]:
        """A folder for one run."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield Path(name)


def find_nginx() -> str | None:
    """Debian keeps it where only root looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def why_not(processes: int) -> str:
    """Why later cannot run with so many processes; "" where it can."""
    if processes == 1 or any(option.name == "processes" for option in OPTIONS):
        return ""
    return NO_PROCESSES
