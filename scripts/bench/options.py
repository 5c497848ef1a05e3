"""The command line."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from later.embedded import EmbeddedError, find_server
from scripts.bench.rows import ROWS
from scripts.bench.rows.sweep import SWEEP
from scripts.bench.stores import DURABILITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    only: Sequence[str]
    durabilities: Sequence[str]
    runs: int | None
    """None: each row has its own number."""
    quick: bool
    server: Path
    folder: Path | None
    json: Path
    markdown: bool
    plot: Path | None


def parsed(arguments: Sequence[str] | None = None) -> Options:
    """The options; ends the process where they are wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.plot is not None and SWEEP.name not in given.only:
        parser.error(f"--plot: expected {SWEEP.name} among the rows")
    quick = bool(given.quick)
    return Options(
        only=given.only,
        durabilities=given.durability or (["none"] if quick else list(DURABILITIES)),
        runs=given.runs or (1 if quick else None),
        quick=quick,
        server=given.server or _shipped(parser),
        folder=given.folder,
        json=given.json,
        markdown=given.markdown,
        plot=given.plot,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Measures later beside its references, on this machine.")
    add = parser.add_argument
    rows = [row.name for row in ROWS]
    add("--only", type=_names(rows), default=rows, metavar="ROWS", help=f"which rows: some of {','.join(rows)}")
    add(
        "--durability",
        type=_names(list(DURABILITIES)),
        metavar="NAMES",
        help=f"what the store does about the disk: some of {','.join(DURABILITIES)} (default: all; --quick: none)",
    )
    add(
        "--runs",
        type=_at_least_one,
        help="how often each is measured (default: 3 times, long rows once; --quick: once)",
    )
    add("--quick", action="store_true", help="about a minute in all, to see that it works")
    add("--server", type=_program, metavar="PATH", help="the store's program (default: the one with later)")
    add("--folder", type=_folder, metavar="DIR", help="where stores keep their files: the disk that is measured")
    add("--json", type=Path, default=Path("build/bench.json"), metavar="FILE", help="default: %(default)s")
    add("--markdown", action="store_true", help="print Markdown instead of tables")
    add("--plot", type=Path, metavar="FILE", help="draw the row `sweep` into this SVG")
    return parser


def _shipped(parser: argparse.ArgumentParser) -> Path:
    try:
        return find_server()
    except EmbeddedError as error:
        parser.error(f"--server: {error}")


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads some of the names, in their own order."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}, got {name!r}")
        return [name for name in known if name in names]

    return read


def _at_least_one(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")


def _program(text: str) -> Path:
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"there is no program {text!r}")
    return Path(found)


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return Path(text)
