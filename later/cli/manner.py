"""How a command goes about what it does to many tasks: the options that all such commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import click

from later.cli.options import one_object, retries


class Manner(NamedTuple):
    """`yes`: without asking; `dry_run`: not at all, but saying how many tasks it would be."""

    yes: bool
    dry_run: bool
    retries: int
    as_json: bool


def of_many(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of those that do something to many tasks, as its parameter `manner`."""

    @wraps(command)
    def with_manner(*, yes: bool, dry_run: bool, retries: int, as_json: bool, **others: Any) -> int:
        return command(manner=Manner(yes, dry_run, retries, as_json), **others)

    decorated = retries("How often a slice is asked for again that did not get through.")(one_object(with_manner))
    decorated = click.option("--dry-run", is_flag=True, help="Do nothing; say how many tasks it would be.")(decorated)
    return click.option("--yes", is_flag=True, help="Go without asking; needed where there is no terminal.")(decorated)
