"""Faults to plant one at a time in the code of privacy: `make planted`; tests must catch each.

The table is the licence to delete tests: a test may go if every fault that it finds is found by
another. A fault is caught if one of its tests fails, not if a test cannot be collected.
"""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).parents[1]
_TREE = ('fedsmp_tff', 'tasks', 'tests', 'conftest.py', 'pyproject.toml')
_TESTS_FAILED = 1  # pytest's status.
# A process that imports what no fault is planted in, once, and forks for each fault: the imports
# take longer than most tests. It ends with its standard input.
_SERVER = """
import json, os, sys
path = sys.path[1:]
import dp_accounting, pytest, scipy.stats, tensorflow, tensorflow_federated
for line in sys.stdin:
  tree, output, arguments = json.loads(line)
  pid = os.fork()
  if not pid:
    os.chdir(tree)
    sys.path[:] = [tree, *path]  # Imports have added a directory with plug-ins of pytest.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    written = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
      os.dup2(written, stream)
    status = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(status)
  print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Fault(NamedTuple):
  """A fault.

  Attributes:
    file: Where it is planted.
    right: The text that is there, once.
    wrong: The text that takes its place.
    tests: The arguments of pytest: the files of which a test must fail, and what to select of them;
      '' is the test file of the module's name.
  """

  file: str
  right: str
  wrong: str
  tests: str = ''


_LIB = 'tests/fedsmp_tff'
_ROUND = 'fedsmp_tff/mechanism/round.py'
_MECHANISM = 'fedsmp_tff/mechanism/mechanism.py'
_CHANNEL = 'fedsmp_tff/mechanism/channel.py'
_INTEGERS = 'fedsmp_tff/mechanism/integer_noise.py'
_SHARES = 'fedsmp_tff/mechanism/noise_shares.py'
_RANDOMNESS = 'fedsmp_tff/randomness.py'
_PROCESS = 'fedsmp_tff/learning_process.py'
_SAMPLING = 'fedsmp_tff/privacy/sampling.py'
_ACCOUNTANTS = 'fedsmp_tff/privacy/accountants.py'
_DIVERGENCES = 'fedsmp_tff/privacy/divergences.py'
_PLD = 'fedsmp_tff/privacy/pld.py'
_PRIVACY_ROUND = 'fedsmp_tff/privacy/round.py'
_RUN_SEARCH = 'tasks/experiments/run_search.py'
_SPEC = 'fedsmp_tff/privacy/spec.py'
_DISCRETE = 'fedsmp_tff/privacy/discrete_gaussian.py'
_BUDGET = 'fedsmp_tff/privacy/budget.py'
_AUDITING = 'fedsmp_tff/privacy/auditing.py'
_RUN_AUDIT = 'tasks/run_audit.py'
_TUNE = 'tasks/tune.py'
_VOTE = 'tasks/vote.py'
_RESUMING = 'tasks/training/resuming.py'
_LEDGER = 'fedsmp_tff/privacy/ledger.py'
_FIELDS = 'fedsmp_tff/privacy/ledger_fields.py'
_LOOP = 'fedsmp_tff/program/loop.py'
_EXPERIMENT = 'tasks/training/experiment.py'
_SAMPLER = f'{_LIB}/privacy/test_sampling.py'
_BLOCKS = f'{_LIB}/privacy/test_ledger.py'
_CHARGES = f'{_LIB}/privacy/test_accountants.py'
_GIVEN_MASK = f'{_LIB}/mechanism/test_round.py -k TestCoordinates'
_RUN_DIRECTORY = 'tasks/training/run_directory.py'

FAULTS = (
    # The clip.
    Fault(_ROUND,
          'kept = tf.where(clipped, direction / length, tf.math.divide_no_nan(kept, clipping_norm))',
          'kept = kept / clipping_norm'),
    Fault(_ROUND, 'tf.math.divide_no_nan(kept, clipping_norm)', 'kept / clipping_norm'),
    Fault(_ROUND, 'tf.concat([self.mechanism.value_weight * kept, vote', 'tf.concat([kept, vote',
          f'{_LIB}/mechanism/test_adaptive_clipping.py'),
    Fault(_ROUND, 'clipped = largest * length > clipping_norm', 'clipped = largest > clipping_norm'),
    Fault(_ROUND, 'kept = tf.where(finite, kept, tf.zeros_like(kept))\n',
          'kept = tf.where(finite, kept, kept)\n'),
    Fault(_ROUND, 'vote = tf.where(empty, 0.0, tf.where(clipped, -0.5, 0.5))',
          'vote = tf.where(clipped, -0.5, 0.5)', f'{_LIB}/mechanism/test_adaptive_clipping.py'),
    Fault('fedsmp_tff/mechanism/adaptive_clipping.py', 'return math.sqrt(1 - vote**2)',
          'return 1.0'),
    Fault('fedsmp_tff/sparsifiers.py', 'if self.unbiased else 1.0', 'if self.unbiased else 2.0',
          f'{_LIB}/test_sparsifiers.py {_LIB}/test_learning_process.py'),
    # The size of the noise.
    Fault(_CHANNEL, 'if stddev := self.mechanism.share_stddev:',
          'if stddev := 0.97 * self.mechanism.share_stddev:', f'{_LIB}/mechanism/test_round.py'),
    Fault(_MECHANISM, 'return self.noise_multiplier / math.sqrt(self.min_reports)',
          'return self.noise_multiplier / self.min_reports'),
    Fault(_MECHANISM, '/ math.sqrt(self.min_reports)', '/ math.sqrt(self.num_slots)',
          f'{_LIB}/mechanism/test_mechanism.py {_LIB}/mechanism/test_round.py'),
    Fault(_MECHANISM, '_NOISE_TAIL = 12.0', '_NOISE_TAIL = 2.0',
          f'{_LIB}/mechanism/test_mechanism.py {_LIB}/mechanism/test_round.py'),
    Fault(_INTEGERS,
          'return (self.mechanism.share_stddev * self.scale) ** 2',
          'return (self.mechanism.share_stddev * self.scale) ** 2 / self.mechanism.min_reports',
          f'{_LIB}/mechanism/test_integer_noise.py {_LIB}/mechanism/test_round.py'),
    Fault(_ROUND, 'participants >= self.mechanism.min_reports, participants', 'participants >= 1, participants'),
    Fault(_ROUND, 'valid & fits if is_exact else fits', 'tf.constant(True)'),
    Fault(_ROUND, 'tf.where(release.valid, new, old)', 'new'),
    Fault(_ROUND,
          'return tf.where(valid, state.clipping_norm * tf.exp(log_factor), state.clipping_norm)',
          'return state.clipping_norm * tf.exp(log_factor)',
          f'{_LIB}/mechanism/test_round.py -k nothing'),
    Fault(_ROUND, 'stddev = clipping_norm * mechanism.values_noise_multiplier',
          'stddev = clipping_norm * mechanism.noise_multiplier',
          f'{_LIB}/mechanism/test_round.py -k signal'),
    Fault(_ROUND, 'mean = values / self.mechanism.clients_per_round',
          'mean = values / tf.cast(participants, tf.float64)'),
    Fault(_CHANNEL, 'return tf.where(too_long(integers), tf.zeros_like(integers), integers)',
          'return integers'),
    # The server's step.
    Fault('fedsmp_tff/mechanism/extrapolation.py', 'signal = energy - tf.reduce_sum(variance)',
          'signal = energy', f'{_LIB}/mechanism/test_round.py -k Extrapolation'),
    Fault(_ROUND, 'extrapolation.step(release, state.clipping_norm, r)',
          'extrapolation.step(release, tf.constant(self.mechanism.clipping_norm, tf.float64), r)',
          f'{_LIB}/mechanism/test_round.py -k Extrapolation'),
    Fault('fedsmp_tff/mechanism/extrapolation.py', 'deviation, clipped_energy / clients_per_round]',
          'deviation]',
          f'{_LIB}/mechanism/test_round.py -k Extrapolation'),
    # The draw of the noise.
    Fault(_SHARES, 'deep = tf.reduce_any(tf.bitwise.bitwise_and(first, tf.int64.max) < _DEEP)',
          'deep = tf.constant(False)'),
    Fault(_SHARES, 'tf.where(bits[0] < 0, -value, value)',
          'tf.where(bits[0] < 0, value, value)'),
    Fault(_SHARES, 'root <= 5.0', 'root <= 6.5'),
    Fault(_SHARES, 'center <= 0.425', 'center <= 0.45'),
    Fault(_SHARES, '(tf.gather(table.low, nearest) <= bits[1])',
          '(tf.gather(table.low, nearest) >= bits[1])'),
    Fault(_SHARES, 'tf.gather(table.low, nearest)', 'tf.gather(table.high, nearest)'),
    Fault(_CHANNEL, 'self.num_values, stddev, seed)', 'self.num_values, stddev, 0 * seed)',
          'tests/system/test_secrets.py'),
    Fault(_CHANNEL, 'randomness.derive(seed, randomness.Stream.INTEGER_NOISE)',
          'randomness.derive(public_seed, randomness.Stream.INTEGER_NOISE)',
          'tests/system/test_secrets.py'),
    Fault('fedsmp_tff/aggregator.py', 'state, randomness.fresh_seed())', 'state, state.seed)',
          'tests/system/test_secrets.py'),
    Fault(_PROCESS, 'examples = randomness.fresh_seed(), data', 'examples = state.seed, data',
          'tests/system/test_secrets.py'),
    Fault(_PROCESS, 'round_seed = randomness.round_seed(state.seed, state.round_num)',
          'round_seed = state.seed', 'tests/system/test_secrets.py'),
    Fault(_RANDOMNESS, '_HASH_KEYS = ((1, 2), (3, 4))', '_HASH_KEYS = ((1, 2), (1, 2))'),
    Fault(_RANDOMNESS, 'tf.stack([number, counter])', 'tf.stack([number, tf.zeros_like(counter)])'),
    # A seed of 0 is a seed.
    Fault(_PROCESS, 'seeded=seed is not None,', 'seeded=bool(seed),',
          f'{_LIB}/test_learning_process.py -k scale'),
    Fault(_ROUND, 'if seed is None else randomness', 'if not seed else randomness',
          f'{_LIB}/test_aggregator.py -k follow_the_seed'),
    Fault(_SAMPLING, 'self.seeded = seed is not None', 'self.seeded = bool(seed)'),
    Fault(_LEDGER, 'self.seeded = seed is not None', 'self.seeded = bool(seed)'),
    Fault(_EXPERIMENT, "return 'valid' if self.settings.seed is None else 'simulated'",
          "return 'simulated' if self.settings.seed else 'valid'",
          'tests/tasks/training/test_experiment.py -k valid'),
    # Who takes part.
    Fault(_SAMPLING,
          'num = rng.binomial(self.population, self.clients_per_round / self.population)',
          'num = self.clients_per_round'),
    Fault(_SAMPLING, 'rng.choice(self.population, min(num, self.num_slots), replace=False)',
          'rng.choice(self.population, min(num, self.num_slots))'),
    Fault(_SAMPLING, '[self._seed, draw] if self.seeded else None',
          '[self._seed or 0, draw]',
          f'{_LIB}/privacy/test_sampling.py {_LIB}/program/test_loop.py'),
    Fault(_LEDGER, 'del self._draws[len(self._sums) - 1 :]', 'self._rounds.pop()'),
    Fault(_LEDGER, 'self._block = draw // per_block\n    return draw', 'return round_num',
          f'{_LIB}/privacy/test_ledger.py {_LIB}/program/test_loop.py'),
    # The reported epsilon.
    Fault(_PLD, 'noise_multiplier / 2,\n      value_disc', 'noise_multiplier,\n      value_disc'),
    Fault(_PLD, 'clients_per_round / population, num_slots, noise_multiplier, step',
          'clients_per_round / population, population, noise_multiplier, step'),
    Fault(_PLD, 'rounding = _ROUNDING * sum(num for _, num in rounds)', 'rounding = 0.0',
          f'{_LIB}/privacy/test_pld.py {_LIB}/privacy/test_accountants.py'
          ' tests/system/test_properties.py'),
    Fault(_PLD, 'pmfs = [loss._pmf_remove, *([] if loss._symmetric else [loss._pmf_add])]',
          'pmfs = [loss._pmf_remove if loss._symmetric else loss._pmf_add]',
          'tests/system/test_independent_epsilon.py'),
    Fault(_SPEC, 'sensitivity = 2 if', 'sensitivity = 1 if',
          f'{_LIB}/privacy/test_spec.py -k dp_event'),
    Fault(_SPEC, 'POISSON and self.num_slots < self.population:', 'POISSON and False:',
          f'{_LIB}/privacy/test_spec.py -k dp_event'),
    Fault(_SPEC, 'relations.REPLACE_ONE if is_fixed', 'relations.ADD_OR_REMOVE_ONE if is_fixed',
          f'{_LIB}/privacy/test_spec.py -k dp_event'),
    Fault(_SPEC, 'if one.distance:', 'if False:',
          f'{_LIB}/privacy/test_spec.py -k dp_event'),
    Fault(_DIVERGENCES, 'event = dp_accounting.GaussianDpEvent(noise_multiplier / 2)\n  if',
          'event = dp_accounting.GaussianDpEvent(noise_multiplier)\n  if',
          f'{_LIB}/privacy/test_accountants.py {_LIB}/privacy/test_spec.py'),
    Fault(_DIVERGENCES, 'return max(divergence, 0.0) + _ROUNDING * max(1 / (order - 1), divergence)',
          'return max(divergence, 0.0)'),
    Fault(_DIVERGENCES, 'math.log(full) + power * replaced', 'math.log(full) + power * plain',
          f'{_LIB}/privacy/test_divergences.py {_LIB}/privacy/test_spec.py'),
    Fault(_PRIVACY_ROUND, 'self.noise_multiplier / (1 if is_added else 2)', 'self.noise_multiplier',
          f'{_LIB}/privacy/test_accountants.py -k displace'),
    Fault(_ACCOUNTANTS, 'return min(self._divergence(round_params, order), unsampled)',
          'return self._divergence(round_params, order)',
          f'{_LIB}/privacy/test_accountants.py -k all_take_part'),
    Fault(_ACCOUNTANTS, 'bound = min(b(delta) for b in bounds)', 'bound = bounds[-1](delta)',
          f'{_LIB}/privacy/test_accountants.py -k all_take_part'),
    Fault(_ACCOUNTANTS, '(plain, (sigma / 2, in_slots, full)) if', '(plain,) if',
          f'{_LIB}/privacy/test_pld.py -k rare_loss'),
    Fault(_PLD, 'math.hypot(*(math.sqrt(num) / sigma for', 'math.hypot(*(1 / sigma for',
          f'{_LIB}/privacy/test_accountants.py -k closed_form'),
    Fault(_PLD, '_composed_width(variance, largest) / _MAX_COMPOSED_STEPS,', '0.0,',
          f'{_LIB}/privacy/test_pld.py -k composed_grid'),
    Fault(_PLD, '_MIN_STEP * _ROUNDING * num_rounds,', '0.0,',
          f'{_LIB}/privacy/test_pld.py -k larger_than_rounding'),
    Fault(_PLD, 'return math.inf if math.isnan(epsilon) else epsilon', 'return epsilon',
          f'{_LIB}/privacy/test_pld.py -k float_can_hold'),
    Fault('fedsmp_tff/privacy/spec.py', 'if delta > 1 / population:', 'if delta > 1:'),
    Fault('tasks/account.py', 'spec_lib.check_delta(delta, max(', 'max(delta, max(',
          'tests/tasks/test_account.py -k composed'),
    Fault(_PRIVACY_ROUND, 'distance=self.distance + overflow)', 'distance=self.distance)',
          f'{_LIB}/privacy/test_accountants.py {_LIB}/privacy/test_spec.py'),
    Fault(_ACCOUNTANTS, 'left = delta - (1 + math.exp(min(epsilon, 700))) * distance',
          'left = delta - distance'),
    Fault(_ACCOUNTANTS, 'return self.guarantees and self.supports(round_params)',
          'return self.supports(round_params)'),
    Fault(_ACCOUNTANTS, 'and not truncated and not', 'and not',
          f'{_LIB}/privacy/test_spec.py'),
    Fault(_DISCRETE, 'mechanism.encoding(), mechanism.min_reports',
          'mechanism.encoding(), mechanism.num_slots'),
    Fault(_DISCRETE, 'if isinstance(mechanism.noise, mechanism_lib.Gaussian) or',
          'if mechanism.noise or'),
    Fault(_ROUND, 'if mechanism.noise.num_values not in (None, num_values):', 'if False:',
          'tests/system/test_secrets.py -k vote'),
    Fault(_DISCRETE, 'lattice.num_integers * (rounding + sums) + lattice.statistical_distance',
          '0.0'),
    Fault(_DISCRETE, 'rounding = 2 * _ratio(_ROUNDING_VARIANCE)',
          'rounding = _ratio(_ROUNDING_VARIANCE)'),
    Fault(_INTEGERS, 'float(tail / total) + ties * 2.0**-64',
          'float(tail / total) + ties * 2.0**-128'),
    Fault(_AUDITING, 'tail = (1 - confidence) / 2', 'tail = 1 - confidence',
          f'{_LIB}/privacy/test_auditing.py -k clopper'),
    # The audit of a run: its own errors, and what it would no longer find.
    Fault(_AUDITING, 'rate = stats.beta.ppf(1 - confidence,', 'rate = stats.beta.ppf(confidence,',
          f'{_LIB}/privacy/test_auditing.py -k Coins'),
    Fault(_AUDITING, 'np.count_nonzero((scores > 0.5) == coins)',
          'np.count_nonzero((scores > 0.5) >= coins)', f'{_LIB}/privacy/test_auditing.py -k Coins'),
    Fault(_AUDITING, 'sigma = 1 / (2 * stats.norm.ppf(rate))', 'sigma = 1 / stats.norm.ppf(rate)',
          f'{_LIB}/privacy/test_auditing.py -k Coins'),
    Fault(_AUDITING, 'record.scores, record.coins, spec, 1 - (1 - 2 * _CHECK) * tail',
          'record.scores, record.coins, spec, confidence',
          f'{_LIB}/privacy/test_auditing.py -k each_fault'),
    Fault(_AUDITING, 'least / (2 * noise_stddev**2)', 'least / noise_stddev**2',
          f'{_LIB}/privacy/test_auditing.py -k SharedNoise'),
    Fault(_AUDITING, 'math.comb(rounds, 2) * p_value)) if', 'p_value)) if',
          f'{_LIB}/privacy/test_auditing.py -k SharedNoise'),
    Fault(_AUDITING, 'stats.binom(n, rate**2)', 'stats.binom(n, rate)',
          f'{_LIB}/privacy/test_auditing.py -k SharedClients'),
    Fault(_AUDITING, '  if overlaps[blocks[:, np.newaxis] == blocks].any():', '  if False:',
          f'{_LIB}/privacy/test_auditing.py -k SharedClients'),
    Fault(_AUDITING, '(1 + math.comb(rounds, 2)) * p_value', 'p_value',
          f'{_LIB}/privacy/test_auditing.py -k SharedClients'),
    Fault(_RUN_AUDIT, 'zip(drawn[coins].tolist(), places[coins].tolist())',
          'zip(drawn.tolist(), places.tolist())', 'tests/tasks/test_run_audit.py -k adaptive_clip'),
    Fault(_RUN_AUDIT, 'sums, cohort = released - known,', 'sums, cohort = released,',
          'tests/tasks/test_run_audit.py -k adaptive_clip'),
    Fault('fedsmp_tff/privacy/budget.py',
          'counted = [*self._before, (self.spec.round, rounds)]',
          'counted = [(self.spec.round, rounds)]'),
    # The choice of settings.
    Fault(_TUNE, 'first, rounds=first.rounds + num)', 'first, rounds=first.rounds)',
          'tests/tasks/test_tune.py -k epsilon_flag'),
    Fault(_TUNE, 'resuming.open_ledger(self.out.new_ledger_path(),',
          "resuming.open_ledger(self.out.path / 'ledger.jsonl',",
          'tests/tasks/test_tune.py -k closed_form'),
    Fault(_VOTE, '_replace(sampling=sampling, process=process)', '_replace(sampling=sampling)',
          'tests/tasks/test_tune.py -k simulated_choice'),
    Fault(_VOTE, '[_STREAM, number, seeds', '[_STREAM, seeds',
          'tests/tasks/test_tune.py -k simulated_choice'),
    Fault(_TUNE, "  if first.sampling == sampling_lib.ALLOCATION:", '  if False:',
          'tests/tasks/test_tune.py -k cannot_decide'),
    Fault(_VOTE, 'float(spec.clipping_norm) / MAX_NORM', '1 / MAX_NORM',
          'tests/tasks/test_tune.py -k clipped_mean'),
    Fault(_VOTE, 'tf.minimum(losses - least, MAX_NORM)', 'losses - least',
          'tests/tasks/test_tune.py -k clipped_mean'),
    Fault(_VOTE, 'tf.where(finite, losses, losses.dtype.max)', 'losses',
          'tests/tasks/test_tune.py -k not_finite'),
    Fault(_VOTE, 'tf.where(finite, tf.minimum(losses - least, MAX_NORM), MAX_NORM)',
          'tf.minimum(tf.where(finite, losses, 1e6) - least, MAX_NORM)',
          'tests/tasks/test_tune.py -k not_finite'),
    Fault(_RESUMING, 'seeds = experiment_lib.make_seeds(settings.seed, began)',
          'seeds = experiment_lib.make_seeds(settings.seed, out.config)',
          'tests/tasks/test_tune.py -k closed_form'),
    Fault(_RESUMING, 'sum(record.rounds_charged for _, record in others)', '0',
          'tests/tasks/test_tune.py -k closed_form'),
    *(
        Fault(_RESUMING, '(record.spec.round, record.data, record.seeded) !=', f'{equal} !=',
              'tests/tasks/test_tune.py -k other_rounds')
        for equal in (
            '(own[0], record.data, record.seeded)', '(record.spec.round, own[1], record.seeded)',
            '(record.spec.round, record.data, own[2])',
        )
    ),
    Fault(_RESUMING, "'choice': {} if choice is None else choice['ledgers'],", "'choice': {},",
          'tests/tasks/test_tune.py -k is_lost'),
    Fault(_RESUMING, 'if choice is not None or has_chosen:', 'if choice is not None:',
          'tests/tasks/test_tune.py -k is_lost'),
    Fault(_RUN_DIRECTORY, 'names.append(OTHER_LEDGERS)', 'pass',
          'tests/tasks/test_tune.py -k other_rounds'),
    Fault(_TUNE, 'resuming.check(out, experiment)', 'pass',
          'tests/tasks/test_tune.py -k other_data'),
    Fault(_TUNE, 'plan.choice_text(experiment, num, lost)', 'plan.choice_text(experiment, num, 0)',
          'tests/tasks/test_tune.py -k other_data'),
    Fault(_TUNE, '      self.write()\n      try:', '      try:',
          'tests/tasks/test_tune.py -k is_promised'),
    Fault(_TUNE, 'finally:\n        self.write()', 'finally:\n        pass',
          'tests/tasks/test_tune.py -k is_promised'),
    Fault(_TUNE, "(record is None or record['chosen'] is None)", 'record is None',
          'tests/tasks/test_tune.py -k is_lost'),
    Fault(_TUNE, 'itertools.count(len(run_directory.ledgers(out.path)))', 'itertools.count()',
          'tests/tasks/test_tune.py -k made_anew_has_other_seeds'),
    Fault(_TUNE, '''
    own.write(chosen, scores.tolist())
    print(_scores_text(flags, scores, ballot.noise_stddev), flush=True)
''', '''
    print(_scores_text(flags, scores, ballot.noise_stddev), flush=True)
    own.write(chosen, scores.tolist())
''', 'tests/tasks/test_tune.py -k before_anybody'),
    Fault('tasks/reporting/results.py', "if config.get('choice'):", 'if False:',
          'tests/tasks/reporting/test_results.py -k choice'),
    Fault(_TUNE, 'make_seeds(first.seed, record)', 'make_seeds(first.seed, None)',
          'tests/tasks/test_tune.py -k made_anew'),
    Fault(_RUN_DIRECTORY, "promised = _promised(parse(path)['ledgers'])", "parse(path)['ledgers']",
          'tests/tasks/test_tune.py -k closed_form'),
    Fault(_RUN_DIRECTORY, 'if charged.get(name, -1) < num}', 'if name not in charged}',
          'tests/tasks/test_tune.py -k closed_form'),
    # The records.
    Fault(_LEDGER, 'draw, per_block = round_num if self.seeded else before,',
          'draw, per_block = round_num,'),
    Fault(_FIELDS, 'allowed = {entry[ROUND] if seeded else number}', 'allowed = {entry[ROUND]}',
          f'{_LIB}/privacy/test_ledger.py'),
    # Random allocation. A round drawn twice in a block.
    Fault(_SAMPLING, 'clients[rounds == t] for t', 'clients[abs(rounds - t) < 2] for t',
          f'{_SAMPLER} -k once_in_a_block'),
    Fault(_SAMPLING, 'draw <= self._last or (', '(', f'{_SAMPLER} -k not_drawn_again'),
    Fault(_SAMPLING, '(position and block != self._block)', 'False',
          f'{_SAMPLER} -k not_drawn_again'),
    # Predictable rounds.
    Fault(_SAMPLING, '[self._seed, block] if self.seeded else None', '[self._seed or 0, block]',
          f'{_SAMPLER} -k no_block_is_repeated'),
    # The block's end cut: its last round has no clients, or it is not drawn uniformly.
    Fault(_SAMPLING, 'rng.integers(self.rounds_per_block, size=',
          'rng.integers(self.rounds_per_block - 1 or 1, size=',
          f'{_SAMPLER} -k uniform_and'),
    # A block reused after a resume, or by a copy.
    Fault(_LEDGER, 'draw // per_block != self._block:', 'False:', f'{_BLOCKS} -k resumed'),
    Fault(_FIELDS, 'else draws[-1]) + 1 if draws', 'else len(draws) - 1) + 1 if draws',
          f'{_BLOCKS} -k resumed'),
    Fault(_FIELDS, 'if is_allocation and draw not in allowed:', 'if False:',
          f'{_BLOCKS} -k no_run_writes'),
    Fault(_SAMPLING, "{**self.__dict__, '_last': -1, '_block': -1, '_cohorts': None}", 'self.__dict__',
          f'{_SAMPLER} -k copy_does_not'),
    Fault('tasks/training/resuming.py', 'charged = experiment.spec.round.next_block(charged)', 'pass',
          'tests/tasks/training/test_resuming.py -k new_block'),
    # A partial block, and overfull rounds, not charged.
    Fault(_PRIVACY_ROUND, '-(-num // per_block)', 'num // per_block', f'{_CHARGES} -k counts_whole'),
    Fault(_PRIVACY_ROUND, 'per_block * block.distance', 'block.distance', f'{_CHARGES} -k overfull'),
    Fault(_PRIVACY_ROUND, 'self.rounds_per_block, self.without_truncation()',
          'self.rounds_per_block, self._replace(num_slots=self.population)',
          f'{_CHARGES} -k overfull'),
    Fault(_PRIVACY_ROUND, 'return 1 / self.rounds_per_block',
          'return 0.5 / self.rounds_per_block', f'{_CHARGES} -k overfull'),
    # Epsilon of another sampling, or of more rounds per block.
    Fault(_ACCOUNTANTS, 'rdp: Optional[type[_Rdp]] = None', 'rdp: Optional[type[_Rdp]] = _PoissonRdp',
          f'{_CHARGES} -k another_sampling'),
    Fault(_PLD, 'sigma=noise_multiplier, num_steps=rounds_per_block',
          'sigma=noise_multiplier, num_steps=2 * rounds_per_block',
          f'{_LIB}/privacy/test_pld.py -k monte_carlo'),
    Fault(_PLD, 'if noise_multiplier < _MIN_BLOCK_NOISE:\n    return poisson(noise_multiplier, 1, 1, 1, step)',
          'if noise_multiplier < _MIN_BLOCK_NOISE:\n    return poisson(noise_multiplier, 2, 1, 2, step)',
          f'{_LIB}/privacy/test_pld.py -k little_noise'),
    Fault(_LEDGER, 'if record.id in by_id:', 'if False:'),
    Fault(_LEDGER, "salt=b'fedsmp_tff: seed of a ledger'", 'salt=secrets.token_bytes(16)'),
    Fault('tasks/training/reporters.py', 'report.rounds_charged if measured else 0)',
          'report.rounds_done if measured else 0)',
          'tests/tasks/training/test_reporters.py -k lost'),
    Fault(_LEDGER, '(before + json.dumps(content)).encode()', 'json.dumps(content).encode()'),
    Fault(_LOOP, '''      draw = round_num if ledger is None else ledger.begin(round_num)
      cohort = cohorts.cohort(sampler.sample(draw), client_data)
      with map_reduce.explain_default_context():
        output = process.next(state, cohort)
''', '''      cohort = cohorts.cohort(sampler.sample(round_num), client_data)
      output = process.next(state, cohort)
      draw = round_num if ledger is None else ledger.begin(round_num)
'''),
    Fault(_SAMPLING, 'dummies = -1 - self.population - np.arange',
          'dummies = -1 - np.arange'),
    Fault('fedsmp_tff/cohorts.py', 'or number < -len(clients)', 'or number < 0'),
    Fault('fedsmp_tff/cohorts.py', 'if number >= 0 else _empty(clients[0])',
          'if number >= 0 else clients[0]'),
    Fault('fedsmp_tff/cohorts.py', 'if len(set(self._ids)) < len(self._ids):', 'if False:'),
    Fault('fedsmp_tff/cohorts.py', 'if len(set(sampled)) < len(sampled):', 'if False:'),
    Fault(_LOOP, "parts = {'process': process, 'sampler'", "parts = {'sampler'",
          f'{_LIB}/program/test_loop.py -k seeded_noise'),
    Fault(_LOOP, "if 'client_work' in dir(metrics) else ()", 'if False else ()',
          f'{_LIB}/program/test_loop.py -k exact_metrics'),
    Fault(_LEDGER, 'if budget is not None and budget.spec != spec:', 'if False:',
          f'{_LIB}/privacy/test_budget.py'),
    Fault(_LEDGER, 'fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)', 'pass'),
    Fault('tasks/cli/locks.py', 'return descriptor if _is_open_at(path, descriptor) else None',
          'return descriptor'),
    Fault(_BUDGET, '[*self._before, (spec.round, spec.rounds)]', '[*before, (spec.round, spec.rounds)]'),
    Fault(_MECHANISM, 'if 0 < (share := self.mechanism.share_stddev) < self.step:', 'if False:'),
    Fault('tasks/training/resuming.py', 'if record.rounds and (out', 'if (out',
          'tests/tasks/test_run.py -k without_rounds'),
    Fault('tasks/account.py', 'for path, record in found if record.rounds]',
          'for path, record in found if record.rounds[1:]]',
          'tests/tasks/test_account.py -k without_rounds'),
    Fault('tasks/training/resuming.py', 'if budget is not None:', 'if False:',
          'tests/tasks/test_run.py -k noise_of_another'),
    Fault(_LOOP, '(self._repeats_count() or self.checkpoints.due())', 'self.checkpoints.due()',
          f'{_LIB}/program/test_loop.py -k each_round_is_saved'),
    Fault('fedsmp_tff/program/checkpoints.py', 'allow_pickle=False', 'allow_pickle=True'),
    Fault('fedsmp_tff/program/files.py', '0o600', '0o644', f'{_LIB}/program/test_checkpoints.py'),
    Fault('tasks/training/resuming.py', 'charged = ledger_lib.read(path).rounds_charged',
          'charged = len({*ledger_lib.read(path).rounds})',
          'tests/tasks/training/test_resuming.py -k run_again'),
    Fault('tasks/training/plan.py', 'and experiment.data.public_owners is None:', 'and False:',
          'tests/tasks/training/test_experiment.py -k depends'),
    Fault('tasks/training/plan.py', 'end = experiment.epsilon(s.rounds + lost)',
          'end = experiment.epsilon(s.rounds)',
          'tests/tasks/training/test_resuming.py -k run_again'),
    Fault(_RUN_DIRECTORY, 'if num_rounds > (', 'if False and num_rounds > (',
          'tests/tasks/training/test_resuming.py -k ledger_of'),
    Fault('tasks/training/resuming.py', "privacy.get('noise_multiplier')", 'None',
          'tests/tasks/training/test_resuming.py -k sigma'),
    Fault('tasks/training/resuming.py', '> 1.001 * target', '> 9 * target',
          'tests/tasks/training/test_resuming.py -k sigma'),
    Fault(_RUN_DIRECTORY, '.items()}] if path.exists() else []', '.items()}] if False else []',
          'tests/tasks/test_account.py -k cut'),
    # A pattern of --ledger is all the runs that it matches.
    Fault(_RUN_SEARCH, '  return paths\n', '  return paths[:1]\n',
          'tests/tasks/test_account.py -k composed'),
    # A directory is all the runs in it, each once, and one that lost its ledger is not left out.
    Fault(_RUN_SEARCH, 'in below or [path]', 'in below[:1] or [path]',
          'tests/tasks/test_account.py -k a_sweep'),
    Fault(_RUN_SEARCH, 'setdefault(os.path.realpath(run_dir), run_dir)',
          'setdefault((path, run_dir), run_dir)', 'tests/tasks/test_account.py -k a_sweep'),
    Fault(_RUN_SEARCH, 'followlinks=True', 'followlinks=False',
          'tests/tasks/test_account.py -k a_sweep'),
    Fault(_RUN_SEARCH, 'if os.path.islink(name) and not os.path.exists(name):', 'if False:',
          'tests/tasks/test_account.py -k cannot_be_read'),
    Fault(_RUN_SEARCH, 'os.walk(path, onerror=refuse,', 'os.walk(path, onerror=None,',
          'tests/tasks/test_account.py -k cannot_be_read'),
    Fault(_RUN_SEARCH, '_SIGNS = (run_directory.CONFIG, run_directory.TUNING, *_LEFT_BY_ROUNDS, ', '_SIGNS = (',
          'tests/tasks/test_account.py -k a_sweep'),
    Fault(_RUN_SEARCH, 'os.walk(path) if LOGS', 'os.walk(os.path.join(path, LOGS)) if LOGS',
          'tests/tasks/test_account.py -k missing_run'),
    Fault(_RUN_SEARCH, 'run_directory.TUNING, *_LEFT_BY_ROUNDS', '*_LEFT_BY_ROUNDS',
          'tests/tasks/test_tune.py -k left_out'),
    Fault(_RUN_SEARCH, "return not config['rounds'] or not begun", 'return True',
          'tests/tasks/test_account.py -k lost_its_ledger'),
    Fault(_RUN_SEARCH, 'run_directory.SUMMARY, run_directory.WEIGHTS, tables', 'tables',
          'tests/tasks/test_account.py -k lost_its_ledger'),
    Fault('tasks/account.py', 'if not has_own and not', 'if not has_others and not',
          'tests/tasks/test_account.py -k lost_its_ledger'),
    # A private sweep has no seed, by no way.
    Fault('tasks/sweep.py', 'if options.private and seed is not None:', 'if False:',
          'tests/tasks/test_sweep.py -k private'),
    Fault('tasks/sweep.py', 'seeds = [None] if options.private else range',
          'seeds = range', 'tests/tasks/test_sweep.py -k private'),
    Fault('tasks/training/tables.py', "if '\\0' in content:", 'if False:',
          'tests/tasks/test_account.py -k cut'),
    Fault('tasks/training/tables.py', "if row.get('round') != str(number):", 'if False:',
          'tests/tasks/test_account.py -k cut'),
    Fault('tasks/training/resuming.py', 'any(record.seeded for record in former)',
          'any(record.unbounded for record in former)',
          'tests/tasks/test_run.py -k budget_of_fresh_noise'),
    # The files of others.
    Fault('fedsmp_tff/errors.py', 'type(value) not in types', 'not isinstance(value, tuple(types))'),
    Fault('fedsmp_tff/errors.py', 'not abs(value) < _MAX_MAGNITUDE', 'abs(value) >= _MAX_MAGNITUDE'),
    Fault(_FIELDS, "if content['seeded'] != bool(content['seed_digest']):", 'if False:'),
    Fault(_FIELDS, "if spec['num_slots'] > _MAX_SLOTS:", 'if False:'),
    Fault(_FIELDS, 'if not 0 <= entry[ROUND] <= _MAX_ROUND:', 'if False:'),
    Fault('tasks/cli/plugins.py', 'return known[name].title if name in known else name',
          "return find('task', name, known, 'TASK', object).title", 'tests/tasks/test_report.py -k import_nothing'),
    Fault('tasks/training/finished.py', "datasets.TASKS.get(config['task'])",
          "datasets.find(config['task'])",
          'tests/tasks/training/test_run_directory.py -k foreign'),
    Fault(_RUN_DIRECTORY, "not all(part.isidentifier() for part in config[name].split('.'))", 'False',
          'tests/tasks/test_report.py -k wrong_types'),
    Fault('tasks/reporting/kept.py', "run_directory.check_config(record['config'])", 'pass',
          'tests/tasks/reporting/test_kept.py -k damaged_record'),
    # What no guarantee covers is said in a report's opening.
    Fault('tasks/reporting/tables.py', '(_SIMULATED, any(is_seeded)),', '(_SIMULATED, False),',
          'tests/tasks/test_report.py -k opening'),
    Fault('tasks/reporting/tables.py', '(_OUTSIDE, any(', '(_OUTSIDE, False and any(',
          'tests/tasks/test_report.py -k opening'),
    Fault('tasks/reporting/results.py', 'reported = {name: config[name] for name in _REPORTED}',
          'reported = dict(config)', 'tests/tasks/reporting/test_kept.py -k nothing_of_the_place'),
    Fault(_RUN_DIRECTORY, '.jsonl\').exists():', '.jsonl\').exists() and False:'),
    Fault('fedsmp_tff/program/files.py', 'unfinished.unlink(missing_ok=True)  # Of', 'pass  # Of'),
    Fault('fedsmp_tff/program/files.py', "'xb'", "'wb'"),
    # Who may read a run's secrets.
    Fault('tasks/cli/command.py', 'os.umask(0o077)', 'os.umask(0o022)',
          'tests/tasks/training/test_run_directory.py -k mode'),
    Fault('fedsmp_tff/program/checkpoints.py', 'chmod(0o700)', 'chmod(0o755)',
          'tests/tasks/training/test_run_directory.py -k closed'),
    # The mask.
    Fault(_ROUND, 'coordinates[1:] > coordinates[:-1]', 'coordinates[1:] >= coordinates[:-1]',
          _GIVEN_MASK),
    Fault(_ROUND, 'coordinates[-1] < self.dim', 'coordinates[-1] <= self.dim', _GIVEN_MASK),
    Fault(_ROUND, 'tf.logical_and(coordinates[0] >= 0,', 'tf.logical_and(coordinates[0] >= -1,',
          _GIVEN_MASK),
    Fault(_ROUND, 'return self._check_coordinates(coordinates)', 'return coordinates', _GIVEN_MASK),
    Fault('fedsmp_tff/errors.py', '[] if check is None else [check]', '[]', _GIVEN_MASK),
    Fault('fedsmp_tff/local_training.py', 'tf.reduce_all(tf.math.is_finite(update)),',
          'tf.logical_not(tf.reduce_any(tf.math.is_nan(update))),',
          f'{_LIB}/test_local_training.py -k not_finite'),
    # The examples.
    Fault('fedsmp_tff/local_training.py', 'rows = tf.sort(order[: self.max_examples])', '''
    order = tf.gather(order, tf.argsort(tf.gather(examples[1], order), stable=True))
    rows = tf.sort(order[: self.max_examples])
'''.strip(), f'{_LIB}/test_local_training.py -k whatever_the_labels'),
    Fault('fedsmp_tff/local_training.py', 'tf.sort(order[: self.max_examples])', 'tf.sort(order)',
          f'{_LIB}/test_local_training.py -k TestDraw'),
    Fault(_PROCESS, 'randomness.derive(client_seed, randomness.Stream.DRAW)',
          'tf.constant([0, 0], tf.int64)', f'{_LIB}/test_learning_process.py -k draws'),
    Fault('fedsmp_tff/local_training.py', "return examples['x'], examples['y']",
          'return tuple(examples.values())', f'{_LIB}/test_local_training.py -k mappings'),
    Fault('tasks/datasets/checks.py', 'not np.all(np.isfinite(array))', 'np.all(np.isnan(array))'),
    Fault('tasks/datasets/checks.py', 'array.dtype != spec.dtype.as_numpy_dtype or not', 'not'),
    Fault('tasks/datasets/checks.py', 'for number, examples in enumerate(data.clients):',
          'for number, examples in enumerate(data.clients[:1]):'),
    Fault(_EXPERIMENT, 'checks.check_data(settings.task, data,', '(settings.task, data,',
          'tests/tasks/training/test_experiment.py -k do_not_fit'),
    Fault('tasks/datasets/checks.py', 'else num_classes - 1', 'else num_classes'),
    Fault('tasks/models/predictions.py', 'tf.reshape(predicted, tf.shape(labels))', 'predicted'),
    Fault('tasks/models/predictions.py', 'predicted = logits > 0',
          'predicted = tf.argmax(logits, axis=-1)'),
    # The outputs of clients, and the owners of data.
    Fault(_EXPERIMENT, '_check_public(settings, data)\n    aggregator', 'aggregator'),
    Fault(_EXPERIMENT,
          'is_all = not self.data.test_outside_guarantee and num >= len(self.data.test[0])',
          'is_all = num >= len(self.data.test[0])',
          'tests/tasks/training/test_experiment.py -k shows_only'),
    Fault(_EXPERIMENT, 'if show is None or self.data.test_outside_guarantee:', 'if show is None:'),
    Fault('fedsmp_tff/runtime/ray_worker.py', 'if self._round != round_key:',
          'if self._round is None:',
          f'{_LIB}/runtime/test_ray_cluster.py -k broadcast'),
    Fault('tasks/datasets/label_skew.py', 'used += drawn', 'used = drawn'),
    Fault('tasks/datasets/task.py', 'cut = (*cut, float(dirichlet))', 'pass',
          'tests/tasks/datasets/test_task.py -k digest'),
    Fault('tasks/datasets/people.py', 'excluded = {*test_groups, *public_groups,',
          'excluded = {*test_groups, *public_groups[1:],'),
)


def caught(fault: Fault) -> str:
  """Plants a fault in a copy of the tree; returns which test fails, or ''."""
  with tempfile.TemporaryDirectory() as directory:
    tree = pathlib.Path(directory)
    for name in _TREE:
      path = _ROOT / name
      if path.is_dir():
        shutil.copytree(path, tree / name, ignore=shutil.ignore_patterns('__pycache__'))
      else:
        shutil.copy(path, tree / name)
    file = tree / fault.file
    text = file.read_text(encoding='utf-8')
    if text.count(fault.right) != 1:
      return ''
    file.write_text(text.replace(fault.right, fault.wrong), encoding='utf-8')
    own = pathlib.Path('tests', fault.file).with_name(f'test_{file.name}')
    arguments = ['-x', '-q', '-p', 'no:cacheprovider', *(fault.tests or str(own)).split()]
    status, output = _run_pytest(tree, arguments)
  failed = [line for line in output.splitlines() if line.startswith('FAILED ')]
  if status != _TESTS_FAILED or not failed:
    return ''
  return failed[0].split(' ')[1]


def _run_pytest(tree: pathlib.Path, arguments: list[str]) -> tuple[int, str]:
  """Returns the exit status and the output of pytest in a tree."""
  server, output = _server(), tree / 'output.txt'
  server.stdin.write(json.dumps([str(tree), str(output), arguments]) + '\n')
  server.stdin.flush()
  return int(server.stdout.readline()), output.read_text(encoding='utf-8')


@functools.cache
def _server() -> subprocess.Popen:
  return subprocess.Popen(
      [sys.executable, '-c', _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL, text=True, env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
  )
