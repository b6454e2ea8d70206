"""Time left of runs: by the length of those that ended, else by the rounds of those that go on."""

from fedbench.bench.tuning.pace import Pace


def test_before_a_run_has_ended_its_rounds_tell() -> None:
    pace = Pace()
    assert pace.left(3, 2, 0.0) is None
    pace.began("a", 10.0)
    pace.began("b", 10.0)
    pace.reported("a", 0.25, 12.0)  # what a process does before its first round is no round's time
    assert pace.left(2, 2, 12.0) is None
    pace.reported("a", 0.5, 14.0)
    pace.reported("b", 0.25, 14.0)
    pace.reported("b", 0.5, 16.0)
    # At 16: a has had 4 s for a quarter and needs 8 s more, of 14; b 2 s, 4 s more, of 10.
    assert pace.left(0, 2, 16.0) == 8.0
    assert pace.left(3, 2, 16.0) == (8 + 4) / 2 + 2 * (14 + 10) / 2


def test_the_length_of_those_that_ended_tells_and_time_passes() -> None:
    pace = Pace()
    for run in "ab":
        pace.began(run, 0.0)
    pace.ended("a", 10.0)
    pace.ended("b", 4.0, counts=False)  # its process died
    pace.began("c", 10.0)
    assert [pace.left(2, 1, now) for now in (10.0, 13.0, 19.0)] == [30.0, 27.0, 21.0]
    assert pace.left(0, 1, 25.0) == 0.0  # later than the others
    pace.reported("c", 0.5, 25.0)
    pace.reported("c", 0.75, 30.0)
    assert pace.left(0, 1, 30.0) == 5.0
