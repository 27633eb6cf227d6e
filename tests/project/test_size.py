"""What is counted only gets smaller."""

from dev.size import count_all, is_far_below, lower, read_ceilings


def test_no_number_is_above_its_ceiling_or_far_below_it() -> None:
    numbers, ceilings = count_all(), read_ceilings()
    assert numbers.keys() == ceilings.keys()
    grown = {name: (number, ceilings[name]) for name, number in numbers.items() if number > ceilings[name]}
    assert grown == {}, "more than it may be, see `make size`: make it smaller, or take as much away elsewhere"
    fallen = {name: number for name, number in numbers.items() if is_far_below(number, ceilings[name])}
    assert fallen == {}, "much less than it may be: run `python -m dev.size --lower`, so that it stays so"


def test_a_ceiling_is_lowered_and_never_raised() -> None:
    assert lower({"sql": 100, "tests": 100}, {"sql": 90, "tests": 110}) == {"sql": 90, "tests": 100}
    assert lower({}, {"sql": 90}) == {"sql": 90}
    assert not is_far_below(980, 1000) and is_far_below(979, 1000)
