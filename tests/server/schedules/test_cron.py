"""Cron expressions in time zones: which moments they name, and what is refused."""

from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.schedules.cron import CronTimes
from tests.requirements import requirement

BERLIN = "Europe/Berlin"
ZONES = (BERLIN, "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "UTC", "Pacific/Apia")


def ticks(cron: str, after: str, count: int, zone: str = BERLIN) -> list[str]:
    """The next ticks in local time."""
    start = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)).timestamp()
    found = CronTimes(cron, zone).list_next(start, count)
    return [datetime.fromtimestamp(tick, ZoneInfo(zone)).strftime("%m-%d %H:%M%z") for tick in found]


@requirement("schedule:times")
def test_a_tick_is_in_the_time_of_the_zone() -> None:
    assert ticks("0 9 * * 1", "2027-03-21T12:00", 3) == ["03-22 09:00+0100", "03-29 09:00+0200", "04-05 09:00+0200"]
    assert ticks("0 9 * * 1", "2027-03-22T09:00", 1) == ["03-29 09:00+0200"]


@requirement("schedule:times")
@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["03-28 03:00+0200", "03-29 02:30+0200"]),
        ("0 2,3 * * *", ["03-28 03:00+0200", "03-29 02:00+0200"]),
        ("0 */2 * * *", ["03-28 03:00+0200", "03-28 04:00+0200"]),
        ("30 * * * *", ["03-28 01:30+0100", "03-28 03:30+0200"]),
    ],
)
def test_a_time_that_does_not_exist_ticks_once(cron: str, expected: list[str]) -> None:
    assert ticks(cron, "2027-03-28T00:59", 2) == expected


@requirement("schedule:times")
@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["10-31 02:30+0200", "11-01 02:30+0100"]),
        ("0,30 2 * * *", ["10-31 02:00+0200", "10-31 02:30+0200", "11-01 02:00+0100"]),
        ("0 */2 * * *", ["10-31 02:00+0200", "10-31 04:00+0100"]),
        ("30 * * * *", ["10-31 01:30+0200", "10-31 02:30+0200", "10-31 02:30+0100", "10-31 03:30+0100"]),
    ],
)
def test_a_time_that_exists_twice_ticks_once_unless_every_hour_ticks(cron: str, expected: list[str]) -> None:
    assert ticks(cron, "2027-10-31T00:59", len(expected)) == expected


@requirement("schedule:times")
def test_every_hour_ticks_at_its_minute_also_where_the_clock_changes_by_half_an_hour() -> None:
    expected = ["10-04 01:51+1030", "10-04 02:51+1100", "10-04 03:51+1100"]
    assert ticks("51 * * * *", "2026-10-04T01:20", 3, "Australia/Lord_Howe") == expected
    expected = ["04-05 01:51+1100", "04-05 01:51+1030", "04-05 02:51+1030"]
    assert ticks("51 * * * *", "2026-04-05T01:20", 3, "Australia/Lord_Howe") == expected


@requirement("schedule:times")
def test_midnight_and_a_whole_day_may_be_missing_and_a_leap_day_ticks_in_leap_years_only() -> None:
    assert ticks("0 0 * * *", "2026-03-07T12:00", 2, "America/Havana") == ["03-08 01:00-0400", "03-09 00:00-0400"]
    assert ticks("0 12 30 12 *", "2011-12-01T00:00", 2, "Pacific/Apia") == ["12-31 00:00+1400", "12-30 12:00+1400"]
    times = CronTimes("0 12 29 2 *", "UTC").list_next(datetime(2094, 1, 1, tzinfo=UTC).timestamp(), 2)
    assert [datetime.fromtimestamp(tick, UTC).year for tick in times] == [2096, 2104]


_PIECES = st.text("0123456789*/,#-LWMONFEB", min_size=1, max_size=5) | st.integers(0, 9).map(str)
_FIELDS = st.tuples(
    *(
        st.one_of(st.just("*"), st.integers(1, 30).map("*/{}".format), st.integers(low, high).map(str))
        for low, high in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 7))
    )
)


@requirement("schedule:times")
@given(_FIELDS, st.sampled_from(ZONES), st.floats(1.2e9, 2.4e9))
@example(("30", "2", "*", "*", "*"), BERLIN, 1_824_945_300.5)
@example(("*/20", "*", "*", "*", "*"), BERLIN, 1_824_945_300.5)
# The last hour of a Sunday comes twice, and a walk backwards from Monday finds its first minutes only.
@example(("*", "*", "*", "*", "*/2"), "Africa/Casablanca", 1_220_223_540.0)
@example(("*", "*", "*", "*", "*/2"), "Africa/Casablanca", 1_220_227_140.0)
def test_the_newest_tick_and_the_next_one_have_no_tick_between_them(
    fields: tuple[str, ...], zone: str, at: float
) -> None:
    times = CronTimes(" ".join(fields), zone)
    following = times.find_next(at)
    newest = times.find_newest(following - 1)
    assert newest <= at < following and following % 60 == 0
    assert times.find_newest(following) == following and times.find_newest(following + 59.9) >= following
    assert times.find_next(newest) == following


@requirement("schedule:refusals")
@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("", "not a cron expression"),
        ("@daily", "not a cron expression; write minute, hour"),
        ("61 * * * *", "bad minute"),
        ("*/0 * * * *", "bad minute"),
        ("٣ * * * *", "not a cron expression"),
        ("* * * * * *", "has a field for seconds; a schedule ticks once a minute at most"),
        ("0 0 30 2 *", "never ticks: no such month has that day"),
        ("0 0 */31 2 1#5", "never ticks"),
        ("1," * 150 + "1 * * * *", "at most 200 characters"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused_with_the_reason(cron: str, said: str) -> None:
    with pytest.raises(InvalidArguments, match=said):
        CronTimes(cron, "UTC")


@requirement("schedule:refusals")
@given(st.text("0123456789*/,#- LWMONFEB\n\0ß", max_size=40) | st.lists(_PIECES, min_size=5, max_size=5).map(" ".join))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    with suppress(InvalidArguments):
        assert CronTimes(text, "UTC").find_next(1.8e9) > 1.8e9
