"""Counts of what happens in each topic, for the history: of all topics, not only of those with a label of their own."""

from __future__ import annotations

MAX_TOPICS = 2000
"""Topics that are counted at a time. A period is ten seconds: where there are more, each of them does little."""
TOPIC_EVENTS = ("created", "done", "failed", "busy", "dead")
_POSITIONS = {event: position for position, event in enumerate(TOPIC_EVENTS)}


class TopicActivity:
    """The events of each topic since they were taken last.

    `consumed` has the totals of what consumers said of tasks, which no other counter has by these words.
    """

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self.consumed = {"done": 0, "failed": 0, "busy": 0}

    def count(self, topic: str, event: str, number: int = 1) -> None:
        """Count events of a topic; events that are none of `TOPIC_EVENTS` are passed over."""
        position = _POSITIONS.get(event)
        if position is None:
            return
        counts = self._counts.get(topic)
        if counts is None:
            if len(self._counts) >= MAX_TOPICS:
                return
            counts = self._counts[topic] = [0] * len(TOPIC_EVENTS)
        counts[position] += number

    def count_consumed(self, topic: str, event: str) -> None:
        """Count what a consumer said of a task."""
        self.consumed[event] += 1
        self.count(topic, event)

    def take(self) -> dict[str, list[int]]:
        """Return the counts by topic, in the order of `TOPIC_EVENTS`, and begin anew."""
        counts, self._counts = self._counts, {}
        return counts
