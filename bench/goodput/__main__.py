"""Measure what a fleet gets done in time, and compare it with the targets."""

from __future__ import annotations

import sys
from functools import partial

from bench.core.command import command
from bench.core.parts import run
from bench.goodput import APART, PARTS
from streamfleet.common import logs
from streamfleet.common.settings import LogSettings, load

EXAMPLES = """\
examples:
  python -m bench.goodput --quick                    small sizes, about a minute; into build/bench/quick
  python -m bench.goodput                            full sizes, about 8 minutes; into bench/results
  python -m bench.goodput --only urgent,shares       these parts, into build/bench/partial
  python -m bench.goodput --only vllm                urgent requests on one real vLLM, about 5 minutes
"""

if __name__ == "__main__":
    logs.configure(load(LogSettings, log_level="error"))
    sys.exit(command("goodput", __doc__, EXAMPLES, partial(run, "goodput", PARTS), list(PARTS), APART))
