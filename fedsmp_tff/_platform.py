"""States in one sentence whether TFF 0.87 can run here; works on any Python 3."""

import platform
import sys


def problem():
  """One sentence on why this platform is not supported, or '' if it is."""
  version = '.'.join(map(str, sys.version_info[:2]))
  found = (platform.system(), platform.machine(), version)
  if found == ('Linux', 'x86_64', '3.11'):
    return ''
  return (
      'fedsmp_tff needs Python 3.11 on Linux x86-64, for which TensorFlow Federated'
      ' 0.87 and its locked dependencies exist; this is Python'
      f' {version} on {found[0]} {found[1]}.'
  )


if __name__ == '__main__':
  sys.exit(problem() or 0)
