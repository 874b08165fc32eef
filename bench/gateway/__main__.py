"""Measure the gateway: many streams through one process, and the time it adds, side by side with vllm serve."""

from __future__ import annotations

import sys

from bench.core.command import finish, parser
from bench.engine.setup import add_choice, chosen, is_usual
from bench.gateway import PARTS, run

EXAMPLES = """\
examples:
  python -m bench.gateway --quick                              small sizes, about 4 minutes; into build/bench/quick
  python -m bench.gateway                                      full sizes, about 20 minutes; into bench/results
  python -m bench.gateway --only streams                       without vLLM; into build/bench/partial
  python -m bench.gateway --only sides --against HEAD~1        CPU of a stream beside another commit; about 10 minutes
  python -m bench.gateway --only apis                          CPU of a streamed response and message beside chat
  python -m bench.gateway --only turns                         one vllm serve, directly and through the gateway
  python -m bench.gateway --only beside                        vllm serve and the gateway, side by side, an engine each;
                                                               about 9 minutes
  python -m bench.gateway --only beside --engine simulated     what the gateway adds, without vLLM

  # another model, on a GPU; into build/bench/partial
  python -m bench.gateway --only turns --model /models/llama-8b
"""


def main() -> int:
    """Run, save, print."""
    words = parser("gateway", __doc__, EXAMPLES)
    words.add_argument("--rounds", type=int, metavar="N", help="of the part beside")
    words.add_argument("--only", choices=PARTS, help="one part")
    words.add_argument("--engine", choices=("vllm", "simulated"), default="vllm", help="of both ways")
    words.add_argument("--rate", type=float, default=0, metavar="N", help="tokens a second of each stream")
    words.add_argument("--against", default="", metavar="COMMIT", help="whose gateway takes turns in the part sides")
    add_choice(words)
    args = words.parse_args()
    parts = (args.only,) if args.only else PARTS
    try:
        setup = chosen(args) if args.engine == "vllm" and args.only not in ("streams", "sides", "apis") else None
        report = run(args.quick, setup, rounds=args.rounds, parts=parts, rate=args.rate, against=args.against)
    except KeyboardInterrupt:
        return 130
    usual = is_usual(args) and args.engine == "vllm" and not args.rate
    finish(report, args, whole=usual and parts == PARTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
