"""The plugin of pytest: tests of an application get it on a virtual clock."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from later.testing import plugin

ROOT = Path(__file__).parents[2]
SHOP = """
from later import Later

tasks = Later()

@tasks.handler
async def remind(order: int) -> None: ...
"""
ASYNC_TEST = """
from shop import remind

async def test_a_reminder_comes(later_clock):
    await remind.enqueue(17, delay="15m")
    await later_clock.advance("14m59s")
    assert later_clock.pending(remind) == [17]
    await later_clock.advance("1s")
    assert later_clock.done(remind) == [17]
"""
SYNC_TEST = """
from datetime import UTC, datetime

import pytest
from shop import remind

def test_a_reminder_comes(later_clock):
    remind.enqueue_sync(17, delay=10)
    later_clock.run_all_sync()
    assert later_clock.done(remind) == [17]

@pytest.mark.later_clock(start=datetime(2030, 1, 1, tzinfo=UTC), policies={"remind": {"retry": 1}})
def test_the_clock_has_arguments(later_clock):
    assert later_clock.now.year == 2030
    assert later_clock.tasks(remind) == []
"""


def run_pytest(folder: Path, *options: str) -> str:
    """Run pytest in a folder of its own, as an application does; return what it prints."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "later.testing.plugin", "--strict-markers", *options)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.system
def test_the_fixture_works_without_an_event_loop_and_in_those_of_pytest_asyncio_and_anyio(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_sync.py").write_text(SYNC_TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nlater_app = shop:tasks\n")
    anyio_conftest = 'import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return "asyncio"\n'
    (tmp_path / "conftest.py").write_text(anyio_conftest)
    loaded: list[str] = []
    for name, module in {"asyncio": "pytest_asyncio.plugin", "anyio": "anyio.pytest_plugin"}.items():
        if find_spec(module.partition(".")[0]):
            loaded += ["-p", module]
            mark = f"import pytest\npytestmark = pytest.mark.{name}\n"
            (tmp_path / f"test_{name}.py").write_text(mark + ASYNC_TEST)
    printed = run_pytest(tmp_path, *loaded)
    assert f"{2 + len(loaded) // 2} passed" in printed, printed


@pytest.mark.system
def test_the_application_is_named_in_conftest_or_the_module_or_replaced_by_a_fixture(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "conftest.py").write_text('later_app = "shop:nothing"\n')
    for name, conftest in (
        ("by_name", 'later_app = "shop:tasks"\n'),
        ("by_fixture", "import pytest\nimport shop\n\n@pytest.fixture\ndef later_app():\n    return shop.tasks\n"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "conftest.py").write_text(conftest)
        (folder / f"test_{name}.py").write_text(SYNC_TEST)
    (tmp_path / "test_module.py").write_text(f'{SYNC_TEST}\nlater_app = "shop:tasks"\n')
    printed = run_pytest(tmp_path)
    assert "6 passed" in printed, printed


@pytest.mark.system
def test_the_application_is_found_beside_a_plugin_that_is_an_object_with_slots(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "conftest.py").write_text(
        'later_app = "shop:tasks"\n\nclass Slotted:\n    __slots__ = ("__weakref__",)\n\n'
        "def pytest_configure(config):\n    config.pluginmanager.register(Slotted())\n"
    )
    (tmp_path / "test_conftest.py").write_text(SYNC_TEST)
    printed = run_pytest(tmp_path)
    assert "2 passed" in printed, printed


@pytest.mark.system
def test_the_marker_takes_only_arguments_with_names(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    mark = "import pytest\npytestmark = pytest.mark.later_clock(1)\nlater_app = 'shop:tasks'\n"
    (tmp_path / "test_marker.py").write_text(f"{mark}\ndef test_it(later_clock): ...\n")
    printed = run_pytest(tmp_path)
    assert "virtual_clock() takes 1 positional argument but 2 were given" in printed, printed


@pytest.mark.system
def test_without_an_application_the_fixture_says_how_to_name_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_none.py").write_text(SYNC_TEST)
    (tmp_path / "test_wrong.py").write_text(f'{SYNC_TEST}\nlater_app = "shop"\n')
    printed = run_pytest(tmp_path)
    assert f"which application is on the clock? {plugin.HOW}" in printed, printed
    assert f"later_app: expected {plugin.HOW}, got 'shop'" in printed, printed


@pytest.mark.system
def test_the_plugin_loads_nothing_of_the_library_before_the_fixture_is_used() -> None:
    code = "import sys, later.testing.plugin; print([m for m in ('aiohttp', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_the_entry_point_is_the_module_itself_so_that_it_is_registered_once() -> None:
    assert f'"{plugin.__name__}" = "{plugin.__name__}"' in (ROOT / "pyproject.toml").read_text()
