"""Options of the data source, as Spark passes them on: texts under names of any case.

An unknown name is an error, so that a typo does not become a default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from later.bulk.input.task_ids import check_job
from later.core.errors import Refused
from later.core.task_names import is_namespaced
from later.core.validation import format_value
from later.option_types import duration

NO_TABLE_OPTIONS = " (a table made by CREATE TABLE has no options: use CREATE TEMPORARY VIEW)"
"""Spark drops them, so that a table of its catalog has neither a URL nor a job."""

Readers = Mapping[str, Callable[[str], Any]]
"""Functions that read an option's text, by the option's name. They raise ValueError with what the option takes."""


def read_seconds(least_ms: int, most_ms: int) -> Callable[[str], float]:
    """Return a function that reads a duration from `least_ms` to `most_ms` as seconds."""
    read = duration(least_ms, most_ms)
    return lambda text: int(read(text)) / 1000


def read_job(text: str) -> str:
    """Return a job's id. Raises ValueError."""
    try:
        return check_job(text)
    except Refused as error:
        raise ValueError(error.detail.removeprefix("expected ")) from None


def read_stored_job(text: str) -> str:
    """Return a job's id, also one with a namespace in front. Raises ValueError."""
    return text if is_namespaced(text) else read_job(text)


def parse_options(given: Mapping[str, str], readers: Readers, ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return the value of each option, None if it is not given. `ignored` are names in lower case.

    Raises:
        Refused: An option is unknown or wrong.
    """
    texts = {name.lower(): text.strip() for name, text in given.items()}
    unknown = texts.keys() - {name.lower() for name in readers} - {*ignored}
    if unknown:
        raise Refused(f"{min(unknown)}: unknown option; there are {', '.join(readers)}", min(unknown))
    values: dict[str, Any] = {}
    for name, read in readers.items():
        text = texts.get(name.lower())
        try:
            values[name] = None if text is None else read(text)
        except ValueError as error:
            raise Refused(f"{name}: expected {error}, got {format_value(text)}", name) from None
    return values
