"""Runs the tutorials from top to bottom, as a reader would."""

import pathlib

import nbclient
import nbformat
import pytest

from tests.support import waiting

_ROOT = pathlib.Path(__file__).parents[2]
_TUTORIALS = sorted((_ROOT / 'docs' / 'tutorials').glob('*.ipynb'))
assert len(_TUTORIALS) == 2


@pytest.mark.slow
@pytest.mark.parametrize('path', _TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run_and_keep_their_outputs(path):
  notebook = nbformat.read(path, as_version=4)
  kept = [cell.get('outputs') for cell in notebook.cells]
  nbclient.NotebookClient(
      notebook, timeout=waiting.SECONDS, resources={'metadata': {'path': str(path.parent)}},
      coalesce_streams=True,  # A slow kernel sends one text in several parts.
  ).execute()
  for cell, before in zip(notebook.cells, kept, strict=True):
    # The numbers differ, since noise is fresh; each cell shows what it showed, and no warning.
    kinds = [output.output_type for output in cell.get('outputs', [])]
    assert [output.output_type for output in before or []] == kinds, cell.source
    assert not [output for output in cell.get('outputs', []) if output.get('name') == 'stderr']
