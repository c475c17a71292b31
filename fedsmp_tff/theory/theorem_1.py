"""Theorem 1 of the paper: epsilon in closed form, and the conditions under which it is stated."""

import math

from fedsmp_tff.privacy import spec as spec_lib


def epsilon(spec: spec_lib.PrivacySpec) -> tuple[float, list[str]]:
  """Solves the paper's Theorem 1 for epsilon, and lists its unmet conditions.

  sigma^2 >= 7 q^2 T (epsilon + 2 log(1/delta)) / epsilon^2 for q = r/n, from the simplified bound
  of Lemma 5 (3.5 q^2 alpha / sigma^2 per round) at alpha = 1 + 2 log(1/delta) / epsilon. The
  theorem samples exactly r of n clients, where a replaced client changes the sum by up to 2 C, but
  uses C: a number for comparison, not a guarantee.

  >>> spec = spec_lib.PrivacySpec(
  ...     population=6000, clients_per_round=100, rounds=180, noise_multiplier=1.4,
  ...     clipping_norm=1.0, delta=6000**-1.1)
  >>> value, unmet = epsilon(spec)
  >>> round(value, 2), len(unmet)  # The paper's own accounting: 1.01.
  (1.94, 1)

  Args:
    spec: sigma, r, n, T and delta.

  Returns:
    epsilon (infinite without noise), and each unmet condition as text.
  """
  sigma, delta = spec.noise_multiplier, spec.delta
  if sigma == 0:
    return math.inf, ['sigma^2 >= 0.7']
  rate = spec.clients_per_round / spec.population
  scale, log_delta = 7 * rate**2 * spec.rounds / sigma**2, math.log(1 / delta)
  epsilon = (scale + math.sqrt(scale**2 + 8 * scale * log_delta)) / 2
  alpha = 1 + 2 * log_delta / epsilon
  bound = 1 + 2 / 3 * sigma**2 * math.log(1 / (rate * alpha * (1 + sigma**2)))
  unmet = []
  if epsilon >= 2 * log_delta:
    unmet.append(f'epsilon < 2 log(1/delta) = {2 * log_delta:.4g}')
  if sigma**2 < 0.7:
    unmet.append(f'sigma^2 = {sigma**2:.4g} >= 0.7')
  if alpha > bound:
    unmet.append(
        f'alpha = {alpha:.4g} <= 1 + (2/3) sigma^2 log(1 / (q alpha (1 + sigma^2))) = {bound:.4g}'
    )
  return epsilon, unmet
