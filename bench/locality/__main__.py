"""Measure where requests of sessions run, and compare it with the targets."""

from __future__ import annotations

import sys

from bench.core.parts import command
from bench.locality import PARTS

EXAMPLES = """\
examples:
  python -m bench.locality --quick                     small sizes, about four minutes; into build/bench/quick
  python -m bench.locality                             full sizes, about twenty minutes; into bench/results
  python -m bench.locality --only routing,hot
  python -m bench.locality --only vllm                 conversations on two real vLLM workers
"""

if __name__ == "__main__":
    sys.exit(command("locality", __doc__, EXAMPLES, PARTS))
