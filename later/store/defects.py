"""The defects that the doctor finds."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from later.core.task import unpack_id
from later.store.keys import Bucket


class Defect(StrEnum):
    """A defect of a task, of a topic's wake entry, of a claim record, or of a schedule."""

    SEVERAL = "several"
    NOWHERE = "nowhere"
    MISPLACED = "misplaced"
    BODILESS = "bodiless"
    LEFTOVER = "leftover"
    UNINDEXED = "unindexed"
    WAKE_MISSING = "wake-missing"
    WAKE_STALE = "wake-stale"
    WAKE_WRONG = "wake-wrong"
    CLAIM_ENDLESS = "claim-endless"
    SCHEDULE_TIME = "schedule-time"
    SCHEDULE_UNLISTED = "schedule-unlisted"
    SCHEDULE_LEFTOVER = "schedule-leftover"


DESCRIPTIONS = {
    Defect.SEVERAL: "is in several buckets",
    Defect.NOWHERE: "is in no bucket",
    Defect.MISPLACED: "is in a bucket of another topic",
    Defect.BODILESS: "has no body, but is in a bucket",
    Defect.LEFTOVER: "has no body, but left behind",
    Defect.UNINDEXED: "has a ttl, but is not in the index of such tasks",
    Defect.WAKE_MISSING: "has no wake entry",
    Defect.WAKE_STALE: "is empty, but has a wake entry",
    Defect.WAKE_WRONG: "has a wrong wake entry",
    Defect.CLAIM_ENDLESS: "has no end",
    Defect.SCHEDULE_TIME: "is missing among those that fire, or is there by mistake",
    Defect.SCHEDULE_UNLISTED: "is missing in the list of schedules",
    Defect.SCHEDULE_LEFTOVER: "is gone, but left behind",
}

SCHEDULE_DEFECTS = (Defect.SCHEDULE_TIME, Defect.SCHEDULE_UNLISTED, Defect.SCHEDULE_LEFTOVER)


class Finding(NamedTuple):
    """A defect of the task `id`, of the wake entry of a topic's `bucket`, or (both are None) of a record or schedule.

    `topic` is None if it is unknown; `where` lists the places in which the task was found, or has the id of the claim
    record or schedule. `met_in` is the key whose reading led to the task.
    """

    kind: Defect
    shard: int
    id: bytes | None
    topic: bytes | None
    bucket: Bucket | None
    where: tuple[str, ...]
    met_in: bytes | None = None

    def __str__(self) -> str:
        topic = "" if self.topic is None else f"topic '{printable(self.topic)}', "
        where = f": {', '.join(self.where)}" if self.where else ""
        subject = "claim record" if self.bucket is None else f"bucket {self.bucket}"
        if self.kind in SCHEDULE_DEFECTS:
            subject = "schedule"
        if self.id is not None:
            subject = f"task {unpack_id(self.id)!r}"
        return f"{subject} ({topic}shard {self.shard}) {DESCRIPTIONS[self.kind]}{where}"


def printable(name: bytes) -> str:
    """Return the name in a form that fits into one line, whatever its bytes."""
    return repr(name.decode("utf-8", "backslashreplace"))[1:-1]
