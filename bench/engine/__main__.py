"""Measure a worker with real vLLM beside bare AsyncLLM.generate and vllm serve, and compare it with the targets."""

from __future__ import annotations

import sys

from bench.core.command import finish, parser
from bench.engine import run
from bench.engine.setup import add_choice, chosen, is_usual

EXAMPLES = """\
examples:
  python -m bench.engine --quick       small sizes, about 4 minutes; into build/bench/quick
  python -m bench.engine               full sizes, about 11 minutes; into bench/results
  python -m bench.engine --rounds 5    each round starts three engines, 20 s each

  # another model, on a GPU; into build/bench/partial
  python -m bench.engine --model /models/llama-8b --engine-args='--max-num-seqs 256'
"""


def main() -> int:
    """Run, save, print."""
    words = parser("engine", __doc__, EXAMPLES)
    words.add_argument("--rounds", type=int, metavar="N", help="how often each engine is started")
    add_choice(words)
    args = words.parse_args()
    try:
        report = run(args.quick, chosen(args), args.rounds)
    except KeyboardInterrupt:
        return 130
    finish(report, args, whole=is_usual(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
