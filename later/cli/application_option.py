"""The application of a command: `module:attribute`, imported, and told where later is."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from types import ModuleType, TracebackType
from typing import Any, TypeVar

import click

from later.application import Later
from later.cli.options import Command, config_options, load_key
from later.config import Config, load
from later.core.errors import ConfigError
from later.handlers.registry import Handlers

Result = TypeVar("Result")

APPLICATION_COMMAND = "run"
"""A command that has the same options of the configuration as every other one that takes an application."""
CONNECTION_OPTIONS = ("url", "key-file", "ca")
ABOUT_APPLICATION = (
    "APP is MODULE:ATTRIBUTE, such as shop.tasks:tasks: a Later, or a function that returns one. The module is "
    "imported from the current directory, or from where Python finds others. Of URL and key, the command line counts "
    "before what the application says, and that before environment and file."
)


def application_options(command: Command) -> Command:
    """Give a command APP, --url, --key-file, --ca and --config, and pass it the application as `application`."""

    @wraps(command)
    def with_application(*, app: str, **parameters: Any) -> Any:
        flags = {name: parameters.pop(name) for name in ("config", "url", "key_file", "ca")}
        config = load(APPLICATION_COMMAND, flags, os.environ)
        return command(application=open_application(app, flags, config), **parameters)

    decorated: Any = config_options(APPLICATION_COMMAND, CONNECTION_OPTIONS)(with_application)
    return application_argument(decorated)  # type: ignore[no-any-return]  # click keeps what it decorates


def application_argument(command: Command) -> Command:
    """Give a command the argument APP, as `app`."""
    return click.argument("app")(command)


def open_application(name: str, flags: Mapping[str, str | None], config: Config) -> Later:
    """Import an application, check its handlers, and tell it where later is, if it does not know.

    `flags` are the command's options as they were given, `config` is made of them.

    Raises:
        ConfigError: it cannot be imported or used; or nothing says where later is.
    """
    application = load_application(name)
    try:
        application.check()
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from None
    url = key = None
    if flags.get("url") or (config.url_given and not application.url):
        url = config.url
    if flags.get("key_file") or not application.key:
        key = load_key(flags, config).key
    if not url and not application.url:
        raise ConfigError(f'{name}: where is later? Give --url, LATER_URL, or Later("http://…") in the application')
    try:
        if url or key or config.ca:
            application.configure(url=url, key=key, ca=config.ca)
        _ = application.connection
    except RuntimeError:
        raise ConfigError(f"{name}: it calls later while it is imported, so its URL and key cannot be set") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return application


def load_application(name: str) -> Later:
    """Return the application `module:attribute`. An error of its own code is printed as a traceback.

    Raises:
        ConfigError: there is no such module or attribute, its code fails, or it is no application; the text says which.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path or "/" in module_name:
        raise ConfigError(f"APP: expected MODULE:ATTRIBUTE, such as shop.tasks:tasks, got {name!r}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _import_module(module_name)
    found: Any = module
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise ConfigError(f"{name}: the module {module_name} has no {path}{_proposal(module, path)}")
        found = getattr(found, attribute)
    if inspect.isroutine(found) and not inspect.iscoroutinefunction(found):
        found = _run_own_code(found, f"{name} failed")
    if isinstance(found, Later):
        return found
    if isinstance(found, Handlers):
        raise ConfigError(f"{name}: Handlers have no connection: name the Later that includes them")
    raise ConfigError(f"{name}: expected a Later, got {_describe(found)}{_proposal(module, path)}")


def _import_module(name: str) -> ModuleType:
    def import_it() -> ModuleType | None:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # a module that this one imports
                raise
        return None

    module = _run_own_code(import_it, f"{name} cannot be imported")
    if module is None:
        raise ConfigError(f"there is no module {name}, neither in {os.getcwd()} nor where Python finds others")
    return module


def _run_own_code(function: Callable[[], Result], failure: str) -> Result:
    """Call code of the application. An error is printed as a traceback, which begins with that code.

    Raises:
        ConfigError: the code failed.
    """
    try:
        return function()
    except Exception as error:
        error.__traceback__ = _without_our_frames(error.__traceback__)
        traceback.print_exception(error)
        raise ConfigError(f"{failure}: {type(error).__name__}") from None


def _without_our_frames(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if file not in (__file__, importlib.__file__) and not file.startswith("<frozen importlib"):
            break
        frames = frames.tb_next
    return frames


def _proposal(module: ModuleType, path: str) -> str:
    """Return the applications of a module, or else its name that is most like this one, as a question."""
    names = [name for name, value in vars(module).items() if isinstance(value, Later)]
    names = names or get_close_matches(path, [name for name in vars(module) if not name.startswith("_")], n=1)
    return f": did you mean {' or '.join(f'{module.__name__}:{name}' for name in names)}?" if names else ""


def _describe(value: object) -> str:
    kind = type(value).__name__
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of the class {kind}"
