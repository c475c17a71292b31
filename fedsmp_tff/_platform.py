"""Checks whether TFF 0.87 can run here; works on any Python 3."""

import platform
import sys


def problem():
  """Returns why this platform is not supported; '' if it is."""
  version = '.'.join(map(str, sys.version_info[:2]))
  actual = (platform.system(), platform.machine(), version)
  if actual == ('Linux', 'x86_64', '3.11'):
    return ''
  return (
      'fedsmp_tff requires Python 3.11 on Linux x86-64, for which TensorFlow Federated 0.87 and its'
      f' locked dependencies exist. Found Python {version} on {actual[0]} {actual[1]}.'
  )


if __name__ == '__main__':
  sys.exit(problem() or 0)
