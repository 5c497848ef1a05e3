"""Print measures of the code: functions, helpers named once, files per folder, repeated class names, cut docstrings.

`python -m scripts.code_measures [PATH…]` measures `later/`, or the named files and folders. `--list` prints the places
behind the figures.

Definitions:

- A *helper named once* is a private function whose name stands twice in its module: where it is defined and where it
  is used. Docstrings and comments do not count.
- A *long function* has more than 40 lines.
- A *repeated class name* is defined in several places.
- A *cut docstring* has a paragraph without an end: no full stop, colon, question mark or closing mark.

At commit 830dfa8 `later/` had 1,692 functions, 506 of them helpers named once (30 %), 3 long functions, 35 files in
its largest folder, 15 repeated class names and 8 cut docstrings.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MAX_LINES = 40
SENTENCE_ENDS = tuple(".:?!`\"'|)")
NO_PROSE = (" ", "|", "- ")
"""The beginnings of lines of an example, a table or a list."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Measures(NamedTuple):
    """The measures of some files: a number, or the places that it counts."""

    functions: int
    helpers_named_once: list[str]
    long_functions: list[str]
    files_by_folder: Counter[str]
    repeated_class_names: dict[str, list[str]]
    cut_docstrings: list[str]


def measure(files: Iterable[Path]) -> Measures:
    """Measure Python files."""
    functions = 0
    once: list[str] = []
    long: list[str] = []
    cut: list[str] = []
    folders: Counter[str] = Counter()
    classes: defaultdict[str, list[str]] = defaultdict(list)
    for file in files:
        source = file.read_text("utf-8")
        tree = ast.parse(source)
        words = Counter(re.findall(r"\w+", _without_prose(source)))
        folders[str(file.parent)] += 1
        for node in ast.walk(tree):
            if isinstance(node, Function):
                functions += 1
                place = f"{file}:{node.lineno} {node.name}"
                if is_private(node.name) and words[node.name] == 2:
                    once.append(place)
                if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_LINES:
                    long.append(f"{place} ({lines} lines)")
            elif isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{file}:{node.lineno}")
        cut += [f"{file}:{line} …{end}" for line, end in cut_docstrings(tree)]
    repeated = {name: places for name, places in sorted(classes.items()) if len(places) > 1}
    return Measures(functions, once, long, folders, repeated, cut)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def cut_docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line of each docstring with a paragraph without an end, and the last words of that paragraph."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            for paragraph in inspect.cleandoc(node.value.value).split("\n\n"):
                last = paragraph.rstrip().rpartition("\n")[2]
                if (
                    last
                    and not last.endswith(SENTENCE_ENDS)
                    and not last.startswith(NO_PROSE)
                    and "://" not in last.split(" ")[-1]
                ):
                    yield node.lineno, last[-40:]


def _without_prose(source: str) -> str:
    return re.sub(r'"""(?:.|\n)*?"""|#.*', "", source)


def print_measures(measures: Measures, *, places: bool) -> None:
    share = 100 * len(measures.helpers_named_once) / max(measures.functions, 1)
    folder, files = measures.files_by_folder.most_common(1)[0]
    for text, found in (
        (f"{measures.functions} functions", []),
        (
            f"{len(measures.helpers_named_once)} helpers named once ({share:.0f} % of the functions)",
            measures.helpers_named_once,
        ),
        (f"{len(measures.long_functions)} functions longer than {MAX_LINES} lines", measures.long_functions),
        (
            f"{files} files at most in one folder ({folder})",
            [f"{count:3} {name}" for name, count in measures.files_by_folder.most_common()],
        ),
        (
            f"{len(measures.repeated_class_names)} repeated class names",
            [f"{name}: {', '.join(defined)}" for name, defined in measures.repeated_class_names.items()],
        ),
        (f"{len(measures.cut_docstrings)} cut docstrings", measures.cut_docstrings),
    ):
        print(text)
        for place in found if places else ():
            print("   ", place)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print measures of the code.")
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("later")], metavar="PATH")
    parser.add_argument("--list", action="store_true", help="print the places behind the figures")
    options = parser.parse_args()
    files = {file for path in options.paths for file in ([path] if path.is_file() else path.rglob("*.py"))}
    print_measures(measure(sorted(files)), places=options.list)


if __name__ == "__main__":
    main()
