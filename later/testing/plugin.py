"""The plugin of pytest: the fixture `later_clock`, an application on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from later.application import Later
    from later.testing.application_clock import VirtualClock

NAME = "later_app"
MARKER = "later_clock"
HOW = f'{NAME} = "module:attribute", in conftest.py, in the test\'s module or in the configuration of pytest'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(NAME, "The application of the fixture `later_clock`: module:attribute.", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(start, travel, policies): arguments of `later.testing.virtual_clock` for the fixture"
    )


@pytest.fixture
def later_app(request: pytest.FixtureRequest) -> Any:
    """The application that the clock is for, or `module:attribute`: a conftest.py may replace this fixture."""
    named = getattr(request.module, NAME, None) or _conftest_value(request) or request.config.getini(NAME)
    if not named:
        pytest.fail(f"which application is on the clock? {HOW}", pytrace=False)
    return named


@pytest.fixture
def later_clock(request: pytest.FixtureRequest, later_app: Any) -> Iterator[VirtualClock]:
    """The application on a virtual clock, until the test ends. Its methods may be awaited in any event loop."""
    from later.testing.application_clock import virtual_clock  # noqa: PLC0415  # most tests need none of it

    marker = request.node.get_closest_marker(MARKER)
    args: tuple[Any, ...] = () if marker is None else marker.args
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    with virtual_clock(_load(later_app), *args, **options) as clock:
        yield clock


def _conftest_value(request: pytest.FixtureRequest) -> Any:
    """Return the variable of the nearest conftest.py that has one, and no fixture of the name."""
    plugins = [
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if isinstance(getattr(plugin, "__dict__", {}).get(NAME), str)  # a plugin may be an object with slots
    ]
    folders = {Path(plugin.__file__).parent: plugin for plugin in plugins if getattr(plugin, "__file__", None)}
    return next((getattr(folders[folder], NAME) for folder in request.path.parents if folder in folders), None)


def _load(app: Later | str) -> Later:
    """Return the application, which may be named by its module and attribute."""
    if not isinstance(app, str):
        return app
    module, colon, attribute = app.partition(":")
    if not colon:
        pytest.fail(f"{NAME}: expected {HOW}, got {app!r}", pytrace=False)
    found: Later = getattr(import_module(module), attribute)
    return found
