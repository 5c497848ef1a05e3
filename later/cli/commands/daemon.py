"""The commands that run a daemon: `up`, `serve` and `worker`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

import click

from later.cli.exit import ExitStatus, exit_code
from later.cli.options import config_options, examples
from later.cli.root_key import read_root_key
from later.cli.store_access import load_config


@click.command(epilog=examples("later up", "later up --data /var/lib/later --listen 127.0.0.1:9000"))
@config_options("up")
def up(**flags: str | None) -> ExitStatus:
    """Run the API and a worker.

    Tasks are kept in an embedded store in the directory --data, unless --redis names another store.
    """
    return _run_daemon("up", flags)


@click.command(epilog=examples("later serve --redis redis://10.0.0.5:6379/0", "later serve --data ./later-data"))
@config_options("serve")
def serve(**flags: str | None) -> ExitStatus:
    """Run the API without a worker.

    Uses the store at --redis, or that of a `later up` that runs on this machine (--data).
    """
    return _run_daemon("serve", flags)


@click.command(epilog=examples("later worker --redis redis://10.0.0.5:6379/0 --concurrency 1000"))
@config_options("worker")
def worker(**flags: str | None) -> ExitStatus:
    """Run a worker without the API.

    Uses the store at --redis, or that of a `later up` that runs on this machine (--data).
    """
    return _run_daemon("worker", flags)


def _run_daemon(command: str, flags: Mapping[str, str | None]) -> ExitStatus:
    config = read_root_key(load_config(command, flags), os.environ)
    # Imported here, because the supervisor of several processes needs none of the modules that serve in its children.
    runner = importlib.import_module("later.daemon.single" if config.processes == 1 else "later.processes.supervisor")
    return ExitStatus(exit_code(lambda: runner.run(config)), immediate=True)
