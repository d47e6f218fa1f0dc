"""The protocol of a comparison: Student's interval, paired differences, units, tuning on other data, flags."""

import math

import pytest
from scipy import stats

from smadmm import tune
from smadmm.protocol import Tried, Tuned, caption, interval, minus_mean, paired, refuse_seen, same_effort, student


@pytest.mark.parametrize("freedom", [*range(1, 100), 1000, 10**6])
def test_quantiles_are_students(freedom):
    assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-4)


def test_the_interval_is_that_of_a_t_test():
    values = [1.0, 2.0, 4.0, 4.5, 7.0, 7.25, 3.0, 2.0]
    found = interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, found.mean, stats.sem(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-4)
    assert found.n == 8


def test_too_few_values_have_no_interval():
    assert math.isnan(interval([]).mean) and interval([]).n == 0
    one = interval([3.0])
    assert one.mean == 3.0 and math.isnan(one.half) and one.n == 1


def test_what_both_share_cancels_in_pairs():
    ours, theirs = [10.1, 20.2, 30.3], [10.0, 20.0, 30.0]
    assert paired(ours, theirs) == pytest.approx(interval([0.1, 0.2, 0.3]))


def test_a_unit_counts_once():
    found = paired([1.0, 3.0, 5.0], [0.0, 0.0, 0.0], units=["a", "a", "b"])
    assert found == pytest.approx(interval([2.0, 5.0])) and found.n == 2


def test_pairs_must_be_complete():
    with pytest.raises(ValueError, match="argument 2"):
        paired([1.0, 2.0], [1.0])


def test_a_tuning_that_saw_what_is_reported_is_refused():
    refuse_seen(["train 1", "seed 1000"], ["test 1", "seed 0"])
    with pytest.raises(ValueError, match=r"tuning saw what is reported \(seed 0\); tune on other data"):
        refuse_seen(["train 1", "seed 0"], ["test 1", "seed 0"])
    with pytest.raises(ValueError, match="tuning saw what is reported"):
        tune(None, {"eta": (1.0,)}, None, 10, seeds=(1, 2), reported=(0, 1))


def test_flags_name_grid_ends_and_divergence():
    def tuned(*scores):
        points = [{"eta": eta, "batch": 8, "rule": "a"} for eta in (1.0, 2.0, 3.0)]
        return Tuned(tuple(map(Tried, points, scores)), 6)

    assert tuned(3.0, 1.0, 2.0).flags == "" and tuned(3.0, 1.0, 2.0).index == 1
    assert tuned(math.inf, 2.0, 1.0).flags == "eta at the end of the grid, 1 of 3 points diverged"
    two = Tuned((Tried({"rho": 0.1}, 1.0), Tried({"rho": 3.0}, 2.0)), 2)
    assert two.at_end == ("rho",)  # of two values the best is always at an end
    assert minus_mean([1.0, 3.0]) == -2.0 and minus_mean([1.0, None]) == math.inf


def test_methods_must_be_tuned_with_the_same_effort():
    one = Tuned((Tried({"eta": 1.0}, 1.0),), 2)
    assert same_effort({"a": one, "b": one}) == 2
    with pytest.raises(ValueError, match="different numbers of runs"):
        same_effort({"a": one, "b": Tuned(one.tried, 3)})


def test_a_caption_says_unit_and_number():
    assert caption("seed", 8) == "unit: seed, n = 8; 95 % intervals over units"
    assert "fewer than 8 units" in caption("patient", 2) and "one unit has no interval" in caption("seed", 1)


def test_values_that_are_not_finite_have_no_interval():
    found = interval([1.0, math.inf, 2.0])
    assert math.isinf(found.mean) and math.isnan(found.half)
