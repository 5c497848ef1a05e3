"""A map from names to values in the order of names, in parts: a copy with a change copies one part, however many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Generic, TypeVar

Value = TypeVar("Value")
Summary = TypeVar("Summary")

MAX_PART = 1000
"""Values in one part; one more, and it is split. To copy one takes some 10 µs."""


class Part(Generic[Value, Summary]):
    """The values of a range of names. Once it is in a map, it never changes."""

    def __init__(self, values: dict[str, Value], summarize: Callable[[Mapping[str, Value]], Summary]) -> None:
        self.values = values
        self._summarize = summarize

    @cached_property
    def names(self) -> list[str]:
        """The names in their order: that of their bytes in UTF-8, too."""
        return sorted(self.values)

    @cached_property
    def summary(self) -> Summary:
        """The result of `summarize` for the values."""
        return self._summarize(self.values)


class PartedMap(Generic[Value, Summary]):
    """The map. It never changes: `PartedMapBuilder` builds another one, which shares the parts that are the same."""

    def __init__(
        self,
        summarize: Callable[[Mapping[str, Value]], Summary],
        parts: tuple[Part[Value, Summary], ...] = (),
        starts: tuple[str, ...] = (),
    ) -> None:
        """`starts` has for each part the first name that it may hold: "" for the first part."""
        self.summarize = summarize
        self.parts = parts or (Part[Value, Summary]({}, summarize),)
        self.starts = starts or ("",)
        self._size = sum(len(part.values) for part in self.parts)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.names

    def get(self, name: str) -> Value | None:
        return self.parts[self._find(name)].values.get(name)

    def part_with(self, name: str) -> Part[Value, Summary]:
        """Return the part that has the name, if any has it."""
        return self.parts[self._find(name)]

    def names_between(
        self, start: str, end: str, limit: int, names_of: Callable[[Part[Value, Summary]], list[str]]
    ) -> list[str]:
        """Return the first `limit` names after `start` and before `end` ("": no end) of those that `names_of` returns.

        It returns names of a part, in their order.
        """
        found: list[str] = []
        for index in range(self._find(start), len(self.parts)):
            if len(found) >= limit or (end and self.starts[index] >= end):
                break
            names = names_of(self.parts[index])
            last = bisect_left(names, end) if end else len(names)
            found += names[bisect_right(names, start) : last]
        return found[:limit]

    def _find(self, name: str) -> int:
        return bisect_right(self.starts, name) - 1 if len(self.starts) > 1 else 0


class PartedMapBuilder(Generic[Value, Summary]):
    """A map that is being built from another one. Parts that belong to no map yet are changed in place."""

    def __init__(self, base: PartedMap[Value, Summary]) -> None:
        self._summarize = base.summarize
        self._parts = [*base.parts]
        self._starts = [*base.starts]
        self._own: set[Part[Value, Summary]] = set()

    def set(self, name: str, value: Value | None) -> None:
        """Set the value of a name; None removes it."""
        index = bisect_right(self._starts, name) - 1
        part = self._parts[index]
        if part not in self._own:
            part = self._parts[index] = self._own_part(dict(part.values))
        if value is not None:
            part.values[name] = value
        else:
            part.values.pop(name, None)
        if len(part.values) > MAX_PART:
            self._split(index)
        elif not part.values and index:
            del self._parts[index], self._starts[index]

    def build(self) -> PartedMap[Value, Summary]:
        """Return the map. The parts are no longer this builder's own."""
        self._own.clear()
        return PartedMap(self._summarize, tuple(self._parts), tuple(self._starts))

    def _split(self, index: int) -> None:
        values = self._parts[index].values
        names = sorted(values)
        middle = len(names) // 2
        halves = (names[:middle], names[middle:])
        self._parts[index : index + 1] = [self._own_part({name: values[name] for name in half}) for half in halves]
        self._starts.insert(index + 1, names[middle])

    def _own_part(self, values: dict[str, Value]) -> Part[Value, Summary]:
        part = Part(values, self._summarize)
        self._own.add(part)
        return part
