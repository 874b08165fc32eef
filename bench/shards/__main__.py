"""Measure what one Redis server carries."""

from __future__ import annotations

import sys
from functools import partial

from bench.core.command import command
from bench.core.parts import run
from bench.shards import PARTS

EXAMPLES = """\
examples:
  python -m bench.shards --quick            small sizes, about a minute; into build/bench/quick
  python -m bench.shards                    full sizes, some minutes; into bench/results
  python -m bench.shards --only cluster     into build/bench/partial
"""

if __name__ == "__main__":
    sys.exit(command("shards", __doc__, EXAMPLES, partial(run, "shards", PARTS), list(PARTS)))
