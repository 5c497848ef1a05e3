"""The Lua scripts by name, read as package data, so that a zipped package (Spark ships one) works too."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

Argument = bytes | str | int
Command = tuple[Argument, ...]

MAX_TASKS = 500
"""Tasks in one call at most: Lua's `unpack` fails near 8,000 values."""
MAX_TOPICS = 100
"""Topics in one call at most: each takes commands of its own, and a script blocks the store while it runs."""


class Script(NamedTuple):
    """A script: its source, and the digest by which the store knows it."""

    source: str
    sha: str

    def call(self, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)

    def read(self, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Command:
        """Return the call of a script that writes nothing, for a user that may read these keys, but not write them."""
        return ("EVALSHA_RO", self.sha, len(keys), *keys, *arguments)


_FOLDER = files("later.store") / "lua"
PRELUDE = (_FOLDER / "prelude.lua").read_text("utf-8")
"""Functions that the scripts share."""


def _load(*names: str) -> Script:
    """Return the script that these files are, one after the other, after the prelude."""
    return _build(PRELUDE, *map(_read, names))


def _load_with_follow_ups(name: str) -> Script:
    """Return the script that runs the script of this name as a function, and makes follow-up tasks."""
    return _build(PRELUDE, "local function end_tasks(KEYS, ARGV)", _read(name), "end", _read("follow_ups"))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text("utf-8")


def _build(*parts: str) -> Script:
    source = "\n".join(parts)
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


CREATE = _load("create")
UPSERT = _load("upsert")
CLAIM = _load("claim")
SETTLE = _load("settle")
GIVE_BACK = _load("give_back")
EXTEND = _load("extend")
CHANGE_TOPIC = _load("change_topic")
SETTLE_WITH_FOLLOW_UPS = _load_with_follow_ups("settle")
CHANGE_TOPIC_WITH_FOLLOW_UPS = _load_with_follow_ups("change_topic")
RELEASE = _load("release")
DELETE = _load("delete")
QUERY = _load("query")
QUERY_SLICE = _load("bodies_prelude", "query_slice")
READ_BODIES = _load("bodies_prelude", "read_bodies")
LIST = _load("list")
SPLIT = _load("split")
READ = _load("read")
UPDATE = _load("update")
RUN_NOW = _load("run_now")
REDRIVE = _load("redrive")
PURGE = _load("purge")
TOPIC_STATE = _load("topic_state")
INDEX_TOPICS = _load("index_topics")
FORGET_TOPIC = _load("forget_topic")
TRIM = _load("trim")
COUNT = _load("count")
COUNT_TOPICS = _load("count_topics")
FORECAST = _load("forecast")
HEARTBEAT = _load("heartbeat")
TELL_INSTANCE = _load("tell_instance")
TAKE_CENSUS = _load("take_census")
END_CENSUS = _load("end_census")
COUNT_BATCH = _load("count_batch")
FORGET_JOB = _load("forget_job")
LIST_JOBS = _load("list_jobs")
HOLD = _load("hold")
HOLD_ORIGIN = _load("hold_origin")
ORIGIN_HOLDS = _load("origin_holds")
RAMP = _load("ramp")
RESUME = _load("resume")
PERMIT = _load("permit")
EXPIRE = _load("expire")
EXPIRE_WITH_FOLLOW_UPS = _load_with_follow_ups("expire")
SWEEP = _load("sweep")
SET_POLICY = _load("set_policy")
NEED = _load("need")
POLICIES_SINCE = _load("versioned_prelude", "policies_since")
SET_SIGNING = _load("set_signing")
SIGNING_SINCE = _load("versioned_prelude", "signing_since")
SET_KEYS = _load("keys_prelude", "set_keys")
KEYS_SINCE = _load("versioned_prelude", "keys_prelude", "keys_since")
WRITE_LIMITS = _load("write_limits")
SET_SCHEDULE = _load("set_schedule")
MOVE_SCHEDULES = _load("move_schedules")
ADD_HISTORY = _load("add_history")
RECORD_EVENTS = _load("record_events")
NOT_IN_ONE_BUCKET = _load("not_in_one_bucket")
EXAMINE = _load("examine")
EXAMINE_WAKE = _load("examine_wake")
REPAIR = _load("repair")
REPAIR_EXPIRY = _load("repair_expiry")
REPAIR_WAKE = _load("repair_wake")
PUT_TASKS = _load("put_tasks")
PUT_FIELDS = _load("put_fields")
CHANGE_META = _load("change_meta")

WITH_FOLLOW_UPS = {
    SETTLE.sha: SETTLE_WITH_FOLLOW_UPS,
    CHANGE_TOPIC.sha: CHANGE_TOPIC_WITH_FOLLOW_UPS,
    EXPIRE.sha: EXPIRE_WITH_FOLLOW_UPS,
}
"""The scripts that end tasks and make their follow-ups, by the digests of those that only end them."""
BY_SHA = {script.sha: script for script in list(globals().values()) if isinstance(script, Script)}
