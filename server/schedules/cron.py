"""The times that a cron expression names in a time zone.

An expression has five fields, read by cronsim as Debian's cron reads them
(https://github.com/cuu508/cronsim, https://manpages.debian.org/bookworm/cron/crontab.5.en.html). Daylight saving:

* An expression that names hours follows the local clock. A time inside a gap ticks when the gap ends; a time that
  exists twice ticks only the first time; two times that become the same moment tick once.
* An expression with `*` for the hour ticks by elapsed time, even through an hour that comes twice.

Ticks are whole minutes, as Unix seconds. The module reads no clock.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.suggestions import did_you_mean

MAX_CRON_CHARS = 200
MAX_ZONE_CHARS = 100
_FIELDS = 5
_ALLOWED = re.compile(r"[A-Za-z0-9*/,# -]+")
_EXAMPLE = "write minute, hour, day of month, month and day of week, such as '0 9 * * 1'"
_ANY_TIME = datetime(2000, 1, 1)


class CronTimes:
    """The ticks of one expression in one time zone."""

    def __init__(self, cron: str, timezone: str) -> None:
        """Raise `InvalidArguments` when the expression or the zone cannot be used, or the expression never ticks."""
        self._zone = find_zone(timezone)
        self._cron = " ".join(cron.split())
        sample = _parse(cron, self._cron)
        hour = self._cron.split(" ")[1]
        self._is_elapsed = hour.startswith("*") and sample.hours == set(range(24))

    def find_next(self, after: float) -> int:
        """Return the first tick later than `after`."""
        start = datetime.fromtimestamp(int(after // 1), self._zone)
        return next(tick for tick in self._walk(start, is_reverse=False) if tick > after)

    def find_newest(self, at: float) -> int:
        """Return the last tick that is not later than `at`."""
        moment = int(at // 1)
        start = datetime.fromtimestamp(moment, self._zone)
        # If the hour of `at` comes for the second time, its later local times have already ticked in the first one.
        overlap_s = moment - start.replace(fold=0).timestamp()
        earlier = self._walk(start + timedelta(seconds=overlap_s + 1), is_reverse=True)
        newest = next(tick for tick in earlier if tick <= at)
        # When cronsim goes backwards, it leaves out an hour that comes twice at the end of a day.
        while (following := self.find_next(newest)) <= at:
            newest = following
        return newest

    def list_next(self, after: float, count: int) -> list[int]:
        """Return the first `count` ticks later than `after`, earliest first."""
        ticks: list[int] = []
        for _ in range(count):
            ticks.append(self.find_next(ticks[-1] if ticks else after))
        return ticks

    def _walk(self, start: datetime, *, is_reverse: bool) -> Iterator[int]:
        if self._is_elapsed:
            times = CronSim(self._cron, start, reverse=is_reverse)
            # With a single entry in `minutes`, cronsim jumps over clock changes. The entry 60, which no time has,
            # prevents this.
            times.minutes = {*times.minutes, 60}
            yield from (int(time.timestamp()) for time in times)
        else:
            local_times = CronSim(self._cron, start.replace(tzinfo=None, fold=0), reverse=is_reverse)
            yield from (_find_moment(local, self._zone) for local in local_times)


def find_zone(timezone: str) -> tzinfo:
    """Return the zone of that name in the IANA database. Raises `InvalidArguments` when there is none."""
    if timezone == "UTC":
        return UTC
    try:
        if len(timezone) <= MAX_ZONE_CHARS:
            return ZoneInfo(timezone)
    # A name may lead out of the database, to one of its folders, or to a file that is not a zone.
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    zones = available_timezones()
    if not zones:
        raise InvalidArguments("this machine has no time zones; install the package tzdata, or use UTC")
    raise InvalidArguments(
        f"there is no time zone {timezone[:MAX_ZONE_CHARS]!r}{did_you_mean(timezone, zones)}; names are those of the "
        "IANA database, such as 'Europe/Berlin'"
    )


def _parse(cron: str, normal: str) -> CronSim:
    """Return the parsed expression. Raises `InvalidArguments` with a message for the person who wrote it."""
    quoted = cron[:MAX_CRON_CHARS]
    if len(cron) > MAX_CRON_CHARS:
        raise InvalidArguments(f"a cron expression has at most {MAX_CRON_CHARS} characters")
    fields = len(normal.split(" "))
    if fields == _FIELDS + 1:
        raise InvalidArguments(
            f"{quoted!r} has a field for seconds; a schedule ticks once a minute at most: {_EXAMPLE}"
        )
    if fields != _FIELDS or not _ALLOWED.fullmatch(normal):
        raise InvalidArguments(f"{quoted!r} is not a cron expression; {_EXAMPLE}")
    try:
        ticks = CronSim(normal, _ANY_TIME)
    except CronSimError as error:
        if normal.split(" ")[2].isdigit() and str(error) == "Bad day-of-month" and 0 < int(normal.split(" ")[2]) < 32:
            raise InvalidArguments(f"{quoted!r} never ticks: no such month has that day") from None
        raise InvalidArguments(f"{quoted!r} is not a cron expression: {str(error).lower()}; {_EXAMPLE}") from None
    if next(ticks, None) is None:
        raise InvalidArguments(f"{quoted!r} never ticks")
    return ticks


def _find_moment(local: datetime, zone: tzinfo) -> int:
    """Return the moment of a local time: the first one if it exists twice, the end of the gap if it does not exist."""
    while True:
        time = local.replace(tzinfo=zone)
        if time.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == local:
            return int(time.timestamp())
        local += timedelta(minutes=1)
