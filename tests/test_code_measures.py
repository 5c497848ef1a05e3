"""The measures of the code: helpers named once, repeated class names, cut docstrings, and the path of a task."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.call_path import Entry, measure
from scripts.code_measures import cut_docstrings
from scripts.code_measures import measure as measure_files
from tests.cases import each_case

SOURCE = '''
"""A module. It mentions _used_once."""


class Twice: ...


class Twice: ...


def _used_once():
    """A docstring that ends in the

    middle of a sentence."""


def _used_twice():
    """A list:

    - without a full stop
    """


_used_once() + _used_twice() + _used_twice()
'''


def test_helpers_class_names_and_docstrings_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    measures = measure_files([file])
    assert measures.functions == 2
    assert [place.rpartition(" ")[2] for place in measures.helpers_named_once] == ["_used_once"]
    assert list(measures.repeated_class_names) == ["Twice"]
    assert len(measures.cut_docstrings) == 1
    assert measures.files_by_folder == {str(tmp_path): 1}


@each_case(
    "docstring",
    ["A sentence.", "An example::\n\n    code\n\nIts end.", "See https://example.org/a", "Return `x`\n\n| a | b |", ""],
)
def test_complete_docstrings_are_not_cut(docstring: str) -> None:
    assert not list(cut_docstrings(ast.parse(f"def f():\n    {docstring!r}")))


def test_changes_of_file_and_calls_across_files_are_counted() -> None:
    caller = ("a.py", "f")
    path = [
        Entry(1, "a.py", "f", False, None),
        Entry(1, "b.py", "g", False, caller),
        Entry(1, "b.py", "h", False, ("b.py", "g")),
        Entry(1, "a.py", "f", True, None),
        Entry(1, "b.py", "g", True, caller),
    ]
    assert measure([path]) == (3, 2, 3, 1, 1)


@pytest.mark.system
def test_the_path_of_a_task_is_measured() -> None:
    command = [sys.executable, "-m", "scripts.call_path", "--hot"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert " changes of file (" in done.stdout.splitlines()[-1]
