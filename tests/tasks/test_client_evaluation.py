"""Tests of `tasks.run --client_evaluation=private`, from flags to the account of its ledger."""

import json

import numpy as np

from fedsmp_tff.privacy import ledger as ledger_lib
from tasks import account
from tasks.config import settings
from tasks.config import task_flags
from tasks.training import experiment
from tasks.training import seeds
from tests.support import commands


class TestExecution:

  def test_it_is_released_charged_and_accounted(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'run'
    arguments = commands.tiny(
        data_dir, out, '--algorithm=fedsmp_randk', '--p=0.1', '--rounds=3',
        '--client_evaluation=private', '--rounds_per_client_evaluation=2',
        '--evaluation_clients_per_round=6', '--evaluation_noise_multiplier=0.5',
    )
    assert commands.main(arguments) == 0
    plan = capsys.readouterr().out
    assert '0.083 by noise' in ' '.join(plan.split())  # 0.5 / 6.
    rows = commands.rows(out / 'metrics.csv')
    assert [bool(row['client_accuracy']) for row in rows] == [False, False, True, True]
    assert [row['evaluations_charged'] for row in rows] == ['0', '0', '1', '2']
    record = ledger_lib.read(out / 'privacy_ledger.jsonl')
    assert record.rounds == [0, 1, 2] and record.evaluations == [2, 3]
    assert record.spec.evaluation.clients_per_round == 6
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['evaluations_charged'] == 2
    assert summary['last_client_accuracy'] == float(rows[-1]['client_accuracy'])
    assert summary['epsilon'] == float(rows[-1]['epsilon']) == record.spec.epsilon()
    assert summary['epsilon'] > 1.05 * record.spec.epsilon(evaluations=0)
    _, text, _ = commands.of_module(capsys, account, f'--ledger={out}')
    assert '2 evaluations on clients (r = 6, sigma = 0.5)' in text
    assert f'Quote epsilon = {summary["epsilon"]:.4g}, by poisson_pld' in text
    # A ledger whose last evaluation was cut off.
    path = out / 'privacy_ledger.jsonl'
    path.write_bytes(b''.join(path.read_bytes().splitlines(keepends=True)[:-1]))
    status, _, said = commands.of_module(capsys, account, f'--ledger={out}')
    assert status == 1 and 'truncated: 1 evaluations, but' in said

  def test_seeded_runs_are_one_story_and_training_is_that_without(self, data_dir, tmp_path):
    flags = ('--algorithm=fedsmp_randk', '--p=0.1', '--rounds=2', '--seed=3')
    on_clients = ('--client_evaluation=private', '--rounds_per_client_evaluation=1')
    for name, more in (('one', on_clients), ('again', on_clients), ('without', ())):
      assert commands.main(commands.tiny(data_dir, tmp_path / name, *flags, *more)) == 0
    assert commands.story(tmp_path / 'one') == commands.story(tmp_path / 'again')
    one, without = (np.load(tmp_path / n / 'weights.npz') for n in ('one', 'without'))
    assert all((one[n] == without[n]).all() for n in one)

  def test_its_draws_are_others_than_those_of_training(self, data_dir, tmp_path):
    arguments = commands.tiny(data_dir, tmp_path / 'run', '--client_evaluation=private')
    run_settings, *_ = settings.parse(arguments[1:])
    task_flags.use(run_settings.task_flags)
    run = experiment.Experiment.build(run_settings, seeds.make(3, None))
    training = run.spec.sampler(run.seeds.sampling)
    evaluation = run.client_evaluation(lambda client: None).sampler
    alike = [np.array_equal(training.sample(t), evaluation.sample(t)) for t in range(20)]
    # 12 clients, each with probability 1/4 in both draws: alike with (1/16 + 9/16)^12 = 0.4 %.
    assert sum(alike) <= 2

  def test_what_is_refused(self, data_dir, tmp_path, capsys):
    for flags, sentence in (
        (('--evaluation_noise_multiplier=1',), 'no effect unless --client_evaluation=private'),
        (
            ('--client_evaluation=private', '--evaluation_clients_per_round=13'),
            '--evaluation_clients_per_round=13 is more than the 12 clients in the data',
        ),
        (
            (
                '--client_evaluation=private', '--epsilon=0.5',
                '--evaluation_noise_multiplier=0.1',
            ),
            'raise --evaluation_noise_multiplier',
        ),
        (('--algorithm=fedavg', '--client_evaluation=private'), '--client_evaluation has no'),
    ):
      said = commands.say(capsys, *commands.tiny(data_dir, tmp_path / 'run', *flags)[1:])
      assert sentence in said, said
