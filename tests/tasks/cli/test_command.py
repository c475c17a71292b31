"""Tests of the frame of commands: help, errors in one sentence, exit status."""

import copy
import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from fedsmp_tff import errors as library_errors
from fedsmp_tff.privacy import ledger
from tasks import errors
from tasks.cli import command
from tasks.cli import options


@dataclasses.dataclass(frozen=True)
class _Options:
  size: int = options.option(3, 'Size.', at_least=1)
  loud: bool = options.option(False, 'Loud.')


def _command(run, **facts):
  return command.Command('tasks.echo', ('usage: echo',), run, (_Options,), **facts)


def _fail(error):
  def run(*unused_arguments):
    raise error

  return run


class TestMain:

  def test_options_reach_the_command(self):
    found = []
    assert _command(found.append).main(['echo', '--size=4', '--loud']) == 0
    assert found == [_Options(size=4, loud=True)]
    assert _command(lambda options: options.size).main(['echo']) == 3

  def test_plain_arguments_are_passed_or_refused(self, capsys):
    found = []
    with_arguments = _command(
        lambda *both: found.append(both), parse=command.parse_with_arguments
    )
    for arguments in (['a', '--size=4', 'b'], ['--size=4', 'a', 'b']):
      assert with_arguments.main(['echo', *arguments]) == 0
    assert found == [(_Options(size=4), ['a', 'b'])] * 2
    assert with_arguments.main(['echo', '~/a']) == 0
    assert found[2][1] == [os.path.expanduser('~/a')]
    assert _command(_fail(AssertionError)).main(['echo', 'a']) == 2
    assert capsys.readouterr().err == (
        "tasks.echo: 'a' is not a flag. Flags start with -- (see python -m tasks.echo --help).\n"
    )

  @pytest.mark.parametrize('flag', ['--help', '-h', '--helpfull'])
  def test_help_lists_the_flags(self, flag, capsys):
    assert _command(_fail(AssertionError)).main(['echo', '--size=x', flag]) == 0
    text = capsys.readouterr().out
    assert text.startswith('usage: echo\n\nFlags:\n')
    assert '\n  --size=INTEGER\n      Size (default: 3).\n' in text

  @pytest.mark.parametrize('argument, sentence', [
      ('--size=0', '--size must be an integer >= 1; got 0.'),
      ('--size=x', "flag --size=x: invalid literal .*'x' "),
      ('--size', 'Missing value for flag --size '),
      ('--sice=1', r'--sice is not a flag. Did you mean --size\? '),
      ('--noloud=1', '--noloud=1 does not take an argument '),
      ('--flagfile=/none', r"--flagfile=/none can't be read \(No such file or directory\)\. Use a"),
      ('--flagfile=paper/svnh', r', paper/svhn\. Did you mean paper/svhn\?'),
      ('--flagfile=', "--flagfile= can't be read .Is a directory"),
  ])
  def test_bad_flags_are_named_in_a_sentence(self, argument, sentence, capsys):
    assert _command(_fail(AssertionError)).main(['echo', argument]) == 2
    said = capsys.readouterr().err
    assert said.startswith('tasks.echo: ') and said.count('\n') == 1
    with pytest.raises(errors.InputError, match=sentence):
      command.parse([argument], _Options, program='echo')

  def test_exit_status_follows_the_error(self, capsys):
    for error, status in (
        (errors.InputError('a'), 2), (ledger.LedgerError('b'), 1),
        (errors.Interrupted(signal.SIGINT, '; c.'), 130),
    ):
      assert _command(_fail(error)).main(['echo']) == status
    assert capsys.readouterr().err == (
        'tasks.echo: a\ntasks.echo: b\ntasks.echo: ended by SIGINT; c.\n'
    )
    with pytest.raises(ZeroDivisionError):
      _command(_fail(ZeroDivisionError())).main(['echo'])

  def test_a_library_error_names_the_flag(self, capsys):
    for argument in ('size', 'slots'):
      error = library_errors.ArgumentError(argument, 'must be 1. Found 2.')
      assert str(error) == f'`{argument}` must be 1. Found 2.' == str(copy.copy(error))
      assert _command(_fail(error)).main(['echo']) == 2
    assert capsys.readouterr().err == (
        'tasks.echo: --size must be 1. Found 2.\ntasks.echo: slots must be 1. Found 2.\n'
    )


class TestStreams:

  def _run(self, redirections, body):
    """Runs a command of this body in a shell; returns its status and stderr."""
    program = f"""
import os, sys
from tasks import errors
from tasks.cli import command

def run():
  {body}

sys.exit(command.Command('tasks.echo', (), run).main(['echo']))
"""
    done = subprocess.run(
        ['sh', '-c', f'exec "$0" "$@" {redirections}', sys.executable, '-c', program],
        stderr=subprocess.PIPE, text=True,
    )
    return done.returncode, done.stderr

  @pytest.mark.parametrize('body', ['print(1)', 'print(1, flush=True)', 'print("x" * 10**6)'])
  @pytest.mark.parametrize('buffered', ['', '1'])
  def test_a_full_disk_is_one_sentence(self, monkeypatch, body, buffered):
    monkeypatch.setenv('PYTHONUNBUFFERED', buffered)
    assert self._run('>/dev/full', body) == (
        1, "tasks.echo: stdout can't be written (No space left on device). Make room, or redirect"
        ' it.\n'
    )

  def test_another_error_of_a_file_keeps_its_traceback(self):
    status, said = self._run('>/dev/null', 'open("/none/x")')
    assert status == 1 and said.endswith("No such file or directory: '/none/x'\n")

  def test_the_status_survives_a_full_stderr(self):
    assert self._run('2>/dev/full', 'raise errors.InputError("wrong")') == (2, '')

  def test_a_full_stderr_is_reported_on_stdout(self, tmp_path):
    out = tmp_path / 'out'
    assert self._run(f'>{out} 2>/dev/full', 'print(1, file=sys.stderr)') == (1, '')
    assert "tasks.echo: stderr can't be written (No space left on device). Make" in out.read_text()

  def test_no_opened_file_takes_a_closed_stream(self, tmp_path):
    body = f'open({str(tmp_path / "x")!r}, "w").write(str(os.open("/dev/null", 0) > 2)); print(1)'
    assert self._run('<&- >&- 2>&-', body) == (0, '')
    assert (tmp_path / 'x').read_text() == 'True'
