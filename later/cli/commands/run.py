"""The command `run`: the pull worker of an application."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from types import FrameType
from typing import Any

import click

from later.application import Later
from later.cli.application_option import ABOUT_APPLICATION, application_argument, open_application
from later.cli.exit import ExitStatus
from later.cli.options import DURATION, OptionParamType, config_options, examples
from later.cli.worker_log import set_up_log
from later.config import Config, load
from later.core.errors import ConfigError
from later.daemon.lifecycle import run_until_stopped
from later.handlers.handler import Handler
from later.option_types import count_or_auto
from later.run.application_supervisor import ApplicationSupervisor
from later.run.application_worker import ApplicationWorker, RunOptions, count_busy_threads
from later.signals import TERMINATION_SIGNALS

CONFIG_FLAGS = ("config", "url", "key_file", "ca", "log_format", "log_level")


@click.command(
    epilog=examples(
        "later run shop.tasks:tasks",
        "later run shop.tasks:tasks --only shop/remind --only shop/mail --processes 4",
        about=f"{ABOUT_APPLICATION} The log goes to standard error, unless the application sets up `logging` itself.",
    )
)
@application_argument
@click.option(
    "--only", "only", multiple=True, metavar="TOPIC",
    help="Work on the tasks of this topic's handler only; repeatable.  [default: those of all handlers]",
)  # fmt: skip
@click.option(
    "--drain", type=DURATION, default="25s", show_default=True,
    help="How long handlers may go on after SIGTERM or Ctrl-C. Then async ones are cancelled, and their tasks given "
    "back.",
)  # fmt: skip
@click.option(
    "--lease", type=DURATION, default="30s", show_default=True,
    help="How long tasks are claimed for: so long it takes until others get them if this process is killed. Leases are "
    "extended while handlers run.",
)  # fmt: skip
@click.option(
    "--processes", type=OptionParamType(count_or_auto(256)), default="1", show_default=True,
    help="Processes that work side by side, each with the whole concurrency; `auto`: one per CPU core.",
)  # fmt: skip
@click.option(
    "--wait", type=DURATION,
    help="How long to wait at the start for later to answer; 0: not at all.  [default: for as long as it takes]",
)  # fmt: skip
@click.option("--process", type=int, hidden=True)
@click.option("--channel", type=int, hidden=True)
@config_options("run")
def run(
    *,
    app: str,
    only: tuple[str, ...],
    drain: float,
    lease: float,
    processes: int,
    wait: float | None,
    process: int | None,
    channel: int | None,
    **flags: str | None,
) -> ExitStatus:
    """Run the handlers of a Python application.

    It claims tasks of pulled topics as handlers have free runs, and keeps their leases while they run. SIGTERM or
    Ctrl-C lets what runs end, and exits with 0; a second one does not wait. While later is away, it waits for it.
    """
    config = load("run", flags, os.environ)
    if processes > 1:
        return _run_processes(processes, app, only, RunOptions([], drain, lease, wait), flags, config)
    application = open_application(app, flags, config)
    if application.is_embedded:
        raise ConfigError(f"{app}: its later is in its own process: start a program that awaits its work()")
    set_up_log(config.log_format, config.log_level, process)
    handlers = choose_handlers(application, only)
    options = RunOptions(handlers, drain, lease, wait)
    status = run_until_stopped(ApplicationWorker(application, options, channel).run())
    _exit_on_second_signal()
    runs = sum(handler.slots.size - handler.slots.free for handler in handlers) + count_busy_threads()
    if runs:  # in threads, which cannot be cancelled, and for which the interpreter would wait
        logging.getLogger("later.worker").warning("%d functions still run in threads: they are left alone", runs)
        logging.shutdown()
    return ExitStatus(status, immediate=runs > 0)


def choose_handlers(application: Later, only: Sequence[str]) -> list[Handler[Any]]:
    """Return the handlers of these topics; without any, all.

    Raises:
        ConfigError: a topic has no handler, or the application has none.
    """
    chosen: dict[Handler[Any], None] = {}
    for topic in only:
        entry = application.find(topic)
        if entry is None:
            near = [known for known in application.topics if known.rpartition("/")[2] == topic]
            near = near or get_close_matches(topic, application.topics, n=3)
            hint = f": did you mean {' or '.join(near)}?" if near else f": it has {', '.join(application.topics)}"
            raise ConfigError(f"--only {topic}: the application has no handler for this topic{hint}")
        chosen[entry.handler] = None
    handlers = list(chosen or application)
    if not handlers:
        raise ConfigError("the application has no handlers: is the module imported that defines them?")
    return handlers


def _run_processes(
    processes: int, app: str, only: Sequence[str], options: RunOptions, flags: dict[str, str | None], config: Config
) -> ExitStatus:
    if sys.platform == "win32":
        raise ConfigError(f"--processes {processes}: expected 1 on Windows: start `later run` several times")
    given = {**flags, "drain": f"{options.drain_s:g}", "lease": f"{options.lease_s:g}", "processes": "1"}
    common = [f"--{name.replace('_', '-')}={text}" for name, text in given.items() if text is not None]
    common += [f"--only={topic}" for topic in only]

    def arguments(number: int, channel: int, is_first: bool) -> list[str]:
        """Return the arguments of a process. Only the first one of all ends if later does not answer."""
        wait = [f"--wait={options.wait_s:g}"] if options.wait_s is not None and is_first else []
        return ["run", app, *common, *wait, f"--process={number}", f"--channel={channel}"]

    set_up_log(config.log_format, config.log_level)
    return ExitStatus(run_until_stopped(ApplicationSupervisor(processes, arguments, options.drain_s).run()))


def _exit_on_second_signal() -> None:
    """Let a signal end the process at once, while the application's own threads and exit functions end."""

    def leave(number: int, frame: FrameType | None) -> None:
        os._exit(128 + number)

    for number in TERMINATION_SIGNALS:
        signal.signal(number, leave)
