"""The statistics of a comparison: Student's interval for any number of values, paired differences, units."""

import math

import pytest
from scipy import stats

from smadmm.protocol import interval, paired, student


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
