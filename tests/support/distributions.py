"""Checks of the distribution of noise."""

import numpy as np
from scipy import stats


def assert_normal(values: np.ndarray, stddev: float, least: float = 1e-9):
  """Asserts that values are normal with this standard deviation and mean 0.

  Fresh noise crosses `least` by chance with that probability. At 2/3 and 3/2 of the scale the
  distribution functions are 0.097 apart at each of two points; 1e-20 takes 0.062 of 6,000 values,
  whose error there is 0.0054 (4,000 values, for tests with a seed: 0.076 and 0.0065).
  """
  assert values.size >= 4000
  for scale, lower, upper in ((1, least, 1), (2 / 3, 0, 1e-20), (3 / 2, 0, 1e-20)):
    p_value = stats.kstest(values, 'norm', (0, scale * stddev)).pvalue
    assert lower <= p_value <= upper, (scale, p_value)
