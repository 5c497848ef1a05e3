"""The examples of docs/python-testing.md are run, as the files that they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testing.test_plugin import run_pytest

PAGE = (Path(__file__).parents[2] / "docs" / "python-testing.md").read_text()


@pytest.mark.system
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("time_machine", reason="one of them travels")
    application, *examples = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(application)
    tests = 0
    for number, example in enumerate(examples):
        count = len(re.findall(r"^(async )?def test_", example, re.MULTILINE))
        name = f"test_{number}.py" if count else "conftest.py"
        (tmp_path / name).write_text(example)
        tests += count
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    printed = run_pytest(tmp_path, "-p", "pytest_asyncio.plugin")
    assert f"{tests} passed" in printed, printed
    assert tests == 9
