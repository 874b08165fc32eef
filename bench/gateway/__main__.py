"""Measure the gateway: many streams through one process, and the time it adds, side by side with vllm serve."""

from __future__ import annotations

import sys

from bench.core.command import command
from bench.gateway import PARTS, run

EXAMPLES = """\
examples:
  python -m bench.gateway --quick           small sizes, about 4 minutes; into build/bench/quick
  python -m bench.gateway                   full sizes, about 20 minutes; into bench/results
  python -m bench.gateway --only streams    without vLLM; into build/bench/partial
  python -m bench.gateway --only apis       CPU of a streamed response and message beside chat
  python -m bench.gateway --only turns      one vllm serve, directly and through the gateway
  python -m bench.gateway --only beside     vllm serve and the gateway, side by side, an engine each; about 9 minutes
"""

if __name__ == "__main__":
    sys.exit(command("gateway", __doc__, EXAMPLES, run, PARTS))
