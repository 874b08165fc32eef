"""Measure how soon idle workers pick up, what they cost, and what depth costs, and compare it with the targets."""

from __future__ import annotations

import sys
from functools import partial

from bench.core.command import command
from bench.core.parts import run
from bench.scheduling import PARTS

EXAMPLES = """\
examples:
  python -m bench.scheduling --quick                   small sizes, about 2 minutes; into build/bench/quick
  python -m bench.scheduling                           full sizes, some minutes; into bench/results
  python -m bench.scheduling --quick --only pull_cost
"""

if __name__ == "__main__":
    sys.exit(command("scheduling", __doc__, EXAMPLES, partial(run, "scheduling", PARTS), list(PARTS)))
