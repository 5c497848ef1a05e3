"""Cron expressions: when they are true on the clocks of a zone, as times of the store.

cronsim reads the expressions and finds their local times. It gets these without a zone, because its own rule for clocks
that are set (that of Debian's cron) depends on how the fields are written. Here one rule holds for all of them: a local
time that is skipped stands for the end of the gap, and one that comes twice for the first time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from later.core.errors import ConfigError, Refused
from later.core.validation import format_value, refusal

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
EXPECTED_CRON = 'five fields like "0 9 * * 1-5", or @hourly, @daily, @weekly, @monthly or @yearly'
EXPECTED_ZONE = "the name of a time zone, such as Europe/Berlin"
FIELDS = 5
MAX_CRON_CHARS = 255
MIN_CLOSENESS = 0.75
"""How much of a misspelt zone and of the one that it means is equal, at least."""

_EPOCH = datetime(1970, 1, 1)
_MS = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)
_ANY_START = datetime(2000, 1, 1)
_ZONE = re.compile(r"(?!posix/|right/|localtime|posixrules|Factory)[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}")
"""Names of zones, without those that a system has for its own use."""


def cron_fields(text: str) -> str:
    """Return the five fields of a cron expression, or of what an alias stands for, with one space between them."""
    return " ".join(ALIASES.get(text.lower(), text).split())


def parse_cron(text: str) -> str:
    """Return the five fields of a cron expression, checked.

    Raises:
        Refused: it cannot be read, or there is no such time within fifty years.
    """
    fields = cron_fields(text).split()
    if len(text) > MAX_CRON_CHARS or len(fields) != FIELDS:
        raise refusal("cron", text, EXPECTED_CRON)
    try:
        next(_local_times(" ".join(fields), _ANY_START))
    except StopIteration:
        raise _never(text) from None
    except ValueError as error:
        if _is_expression([*fields[:3], "*", fields[4]]) and _is_expression([*fields[:2], "*", *fields[3:]]):
            raise _never(text) from None  # each field is right, but the months do not have such a day
        wrong = f": {str(error).lower()}" if isinstance(error, _CronFault) else ""
        raise Refused(f"{refusal('cron', text, EXPECTED_CRON)}{wrong}", "cron") from None
    return " ".join(fields)


class _CronFault(ValueError):
    """The error of cronsim about an expression that it cannot read."""


def _local_times(cron: str, after: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Return an iterator over the local times after this one, or before it.

    Raises:
        ValueError: the expression cannot be read.
        ConfigError: cronsim is not installed. An application without cron expressions does without it.
    """
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415  # the library does not install it
    except ModuleNotFoundError:
        raise ConfigError("cron expressions need cronsim: pip install 'later[server]'") from None
    try:
        return CronSim(cron, after, reverse=reverse)
    except CronSimError as error:
        raise _CronFault(str(error)) from None


def _is_expression(fields: list[str]) -> bool:
    try:
        _local_times(" ".join(fields), _ANY_START)
    except ValueError:
        return False
    return True


def _never(text: str) -> Refused:
    return Refused(f"cron: expected times that exist, got {format_value(text)}: no such day in fifty years", "cron")


@lru_cache(maxsize=1024)
def find_zone(name: str) -> ZoneInfo:
    """Return the time zone of this name. Raises Refused, which names the zone that is probably meant."""
    if _ZONE.fullmatch(name) is None:
        raise refusal("zone", name, EXPECTED_ZONE)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # a folder of zones, another file, no such zone
        nearest = _nearest_zone(name)
        question = f"; did you mean {nearest}?" if nearest else ""
        raise Refused(f"{refusal('zone', name, EXPECTED_ZONE)}{question}", "zone") from None


@lru_cache(maxsize=1024)
def _nearest_zone(name: str) -> str | None:
    """Return the zone whose name, or the last part of it, is most like this one: `Berlin` is `Europe/Berlin`."""
    names = _names_of_zones()
    nearest = get_close_matches(name.lower(), names, 1, MIN_CLOSENESS)
    return names[nearest[0]] if nearest else None


@lru_cache(maxsize=1)
def _names_of_zones() -> dict[str, str]:
    """Return the names of all zones by how people write them: in lower case, and without the first part."""
    zones = sorted(name for name in available_timezones() if _ZONE.fullmatch(name))
    cities = {zone.rpartition("/")[2].lower(): zone for zone in reversed(zones) if zone.count("/") == 1}
    return cities | {zone.lower(): zone for zone in zones}


class CronTimes:
    """The times (ms) at which a checked cron expression is true in a zone."""

    def __init__(self, cron: str, zone: ZoneInfo) -> None:
        self._cron = cron
        self._zone = zone

    def all(self, since: int) -> Iterator[int]:
        """Yield the times that are not before `since`, until there is none within fifty years, or the year 9999 ends.

        The expression is read once for all of them: it may take longer than its next time.
        """
        with suppress(OverflowError):
            # from the moment before on: the skipped times of a gap that ends at `since` count, too
            local = _local_time(since - 1, self._zone).replace(tzinfo=None)
            for found in _local_times(self._cron, local):
                at = _first_instant(found, self._zone)
                if at >= since:  # earlier ones have come for the second time
                    yield at
                    since = at + 1

    def first(self, since: int) -> int | None:
        """Return the first time that is not before `since`; None if there is none: see `all`."""
        return next(self.all(since), None)

    def last(self, until: int) -> int | None:
        """Return the last time that is not after `until`; None if there is none within fifty years."""
        # a local time that comes for the second time: later ones have been there for the first time
        offset = _local_time(until, self._zone).replace(fold=0).utcoffset() or timedelta()
        local = (_EPOCH + until * _MS + offset).replace(microsecond=0) + _SECOND
        for found in _local_times(self._cron, local, reverse=True):
            at = _first_instant(found, self._zone)
            if at <= until:
                return at
        return None


def _local_time(ms: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC).replace(microsecond=ms % 1000 * 1000).astimezone(zone)


def _first_instant(local: datetime, zone: ZoneInfo) -> int:
    """Return when (ms) the zone's clocks first show a local time; of a skipped one, the end of the gap.

    See PEP 495: `fold` chooses between the offsets before and after the clocks are set.
    """
    before = local.replace(tzinfo=zone).utcoffset() or timedelta()
    after = local.replace(tzinfo=zone, fold=1).utcoffset() or timedelta()
    if after <= before:
        return (local - before - _EPOCH) // _MS
    low, high = (local - after - _EPOCH) // _SECOND, (local - before - _EPOCH) // _SECOND
    while high - low > 1:  # the clocks are set after `low`, at `high` at the latest
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high * 1000
