"""Measure how tenants share a lane, and compare it with the targets."""

from __future__ import annotations

import sys

from bench.core.parts import command
from bench.fairness import PARTS

EXAMPLES = """\
examples:
  python -m bench.fairness --quick                     small sizes, about a minute; into build/bench/quick
  python -m bench.fairness                             full sizes, about ten minutes; into bench/results
  python -m bench.fairness --only small,shares
  python -m bench.fairness --only vllm                 a small tenant beside a flood on real vLLM, about three minutes
"""

if __name__ == "__main__":
    sys.exit(command("fairness", __doc__, EXAMPLES, PARTS))
