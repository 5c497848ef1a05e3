"""The results of a request for many tasks: an answer or an error for each item, and how many of each kind there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from later.api.problems import error_body
from later.api.response_schemas import BatchItemError, StoredItemError
from later.core.errors import Conflict, LaterError, NotDurable, NotFound, Refused, StoreFault

log = structlog.get_logger()

Answer = TypeVar("Answer")
View = TypeVar("View")


class ErrorCounts(NamedTuple):
    """The numbers of items that are missing, were refused, or failed."""

    missing: int
    refused: int
    failed: int


def count_errors(answers: Sequence[object], done: int = 0) -> ErrorCounts:
    """Count the errors among the answers; besides, `done` items succeeded.

    Raises:
        LaterError: the first failure, if no item succeeded; then the whole request may be sent again.
    """
    missing = sum(isinstance(answer, NotFound) for answer in answers)
    refused = sum(isinstance(answer, Refused) for answer in answers)
    failures = [a for a in answers if isinstance(a, LaterError) and not isinstance(a, NotFound | Refused | Conflict)]
    is_any_stored = any(isinstance(failure, NotDurable) for failure in failures)
    if failures and not is_any_stored and len(failures) + refused == len(answers) + done:
        raise failures[0]
    faults = [failure for failure in failures if isinstance(failure, StoreFault)]
    if faults:
        log.error("batch items failed", items=len(faults), reason=str(faults[0]))
    return ErrorCounts(missing, refused, len(failures))


def item_result(answer: Answer | LaterError, view: Callable[[Answer], View]) -> View | BatchItemError:
    """Return an item's answer as it is shown, or its error."""
    return BatchItemError(error_body(answer)) if isinstance(answer, LaterError) else view(answer)


def change_result(
    answer: Answer | LaterError, view: Callable[[Answer], View]
) -> View | BatchItemError | StoredItemError:
    """Return the answer of an item that changes a task as it is shown, or its error."""
    if isinstance(answer, NotDurable) and answer.id is not None:
        return stored_item_error(answer, answer.id)
    return item_result(answer, view)


def stored_item_error(error: NotDurable, id: str, created: bool | UnsetType = UNSET) -> StoredItemError:
    """Return the result of an item that was carried out, but has not reached its durability."""
    body = msgspec.structs.replace(error_body(error), id=UNSET)
    return StoredItemError(id=id, created=created, error=body)
