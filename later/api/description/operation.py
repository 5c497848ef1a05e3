"""An operation of the API: a method on a path, what it takes, what it answers, and an example of both."""

from __future__ import annotations

from typing import Any, NamedTuple

from later.api.problem_types import ProblemType

NO_BODY = ""
"""The request of an operation that takes no body, and the answer of one that has none."""
TEXT = "text"
"""The answer of an operation that answers text for people, or for Prometheus."""


class Operation(NamedTuple):
    """An operation: its method and path, its id, its tag, and what it does.

    `answer` and `request` name the components of its bodies. `example` is a body that it takes, and `path_example` the
    path and query with which it is sent. `problems` are those that are its own; those of all operations are added.
    """

    method: str
    path: str
    id: str
    tag: str
    summary: str
    answer: str
    request: str = NO_BODY
    example: Any = None
    path_example: str = ""
    problems: tuple[ProblemType, ...] = ()
    may_lack_body: bool = False
    takes_lines: bool = False
    """True if a batch may also come as lines of JSON."""

    @property
    def sent_path(self) -> str:
        """The path of the example."""
        return self.path_example or self.path
