"""Measure the CPU of a worker's front end beside bare AsyncLLM and vLLM's own server, with a simulated model."""

from __future__ import annotations

import sys

from bench.core.command import command
from bench.front_end import PARTS, run

EXAMPLES = """\
examples:
  python -m bench.front_end --quick              256 at once, 3 rounds, about 2 minutes; into build/bench/quick
  python -m bench.front_end                      full sizes, about 12 minutes; into bench/results
  python -m bench.front_end --only paced         1,000 streams; into build/bench/partial
  taskset -c 1 python -m bench.front_end         all of it on one core, beside other work
"""

if __name__ == "__main__":
    sys.exit(command("front_end", __doc__, EXAMPLES, run, PARTS))
