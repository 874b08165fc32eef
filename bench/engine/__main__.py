"""Measure a worker with real vLLM beside bare AsyncLLM.generate and vllm serve, and compare it with the targets."""

from __future__ import annotations

import sys

from bench.core.command import command
from bench.engine import run

EXAMPLES = """\
examples:
  python -m bench.engine --quick       small sizes, about 4 minutes; into build/bench/quick
  python -m bench.engine               full sizes, about 11 minutes; into bench/results
"""

if __name__ == "__main__":
    sys.exit(command("engine", __doc__, EXAMPLES, run))
