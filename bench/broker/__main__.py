"""Measure streamfleet beside other queues and raw limits: enqueue, drain, round trips and memory."""

from __future__ import annotations

import sys

from bench.broker import run
from bench.broker.systems import SYSTEMS
from bench.core.command import command

EXAMPLES = """\
examples:
  python -m bench.broker --quick                               small sizes, under 2 minutes; into build/bench/quick
  python -m bench.broker                                       full sizes, under 15 minutes; into bench/results
  python -m bench.broker --quick --only streamfleet,bullmq-node

The first run installs each peer into build/bench/peers: about a minute more, from PyPI and npm.
"""

if __name__ == "__main__":
    sys.exit(command("broker", __doc__, EXAMPLES, run, [system.name for system in SYSTEMS]))
