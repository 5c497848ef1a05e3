"""The options of `python -m scripts.bench`."""

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
    """The parsed options."""

    only: Sequence[str]
    durabilities: Sequence[str]
    runs: int | None
    """None: each row's own number."""
    quick: bool
    server: Path
    folder: Path | None
    json: Path
    markdown: bool
    plot: Path | None


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse the options. Ends the process with a usage error if they are wrong."""
    parser = _build_parser()
    options = parser.parse_args(arguments)
    if options.plot is not None and SWEEP.name not in options.only:
        parser.error(f"--plot: expected {SWEEP.name} among the rows")
    quick = bool(options.quick)
    return Options(
        only=options.only,
        durabilities=options.durability or (["none"] if quick else list(DURABILITIES)),
        runs=options.runs or (1 if quick else None),
        quick=quick,
        server=options.server or _find_embedded_server(parser),
        folder=options.folder,
        json=options.json,
        markdown=options.markdown,
        plot=options.plot,
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description="Measure later and its references on this machine.")
    add = parser.add_argument
    rows = [row.name for row in ROWS]
    add(
        "--only",
        type=_parse_names(rows),
        default=rows,
        metavar="ROWS",
        help=f"rows to measure, some of {','.join(rows)}",
    )
    add(
        "--durability",
        type=_parse_names(list(DURABILITIES)),
        metavar="NAMES",
        help=f"durability of the store, some of {','.join(DURABILITIES)} (default: all; --quick: none)",
    )
    add(
        "--runs",
        type=_parse_count,
        help="number of runs (default: 3, long rows 1; --quick: 1)",
    )
    add("--quick", action="store_true", help="take a few minutes in all, to see that it works")
    add(
        "--server",
        type=_parse_program,
        metavar="PATH",
        help="program of the store (default: the one shipped with later)",
    )
    add("--folder", type=_parse_folder, metavar="DIR", help="directory for the files of stores: its disk is measured")
    add("--json", type=Path, default=Path("build/bench.json"), metavar="FILE", help="default: %(default)s")
    add("--markdown", action="store_true", help="print Markdown instead of tables")
    add("--plot", type=Path, metavar="FILE", help="draw the row `sweep` into this SVG")
    return parser


def _find_embedded_server(parser: argparse.ArgumentParser) -> Path:
    try:
        return find_server()
    except EmbeddedError as error:
        parser.error(f"--server: {error}")


def _parse_names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names; its result has the order of `known`."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}, got {name!r}")
        return [name for name in known if name in names]

    return read


def _parse_count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")


def _parse_program(text: str) -> Path:
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"no program {text!r}")
    return Path(found)


def _parse_folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"no directory {text!r}")
    return Path(text)
