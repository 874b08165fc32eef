"""Plays many histories against the kept scripts and today's, until the first difference."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.scripts.compare.playing import KINDS, against_kept, play


def main() -> int:
    """Play them; returns 1 at the first difference."""
    known = argparse.ArgumentParser(prog="python -m tests.scripts.compare", description=__doc__)
    known.add_argument("--kind", choices=[*KINDS], help="histories of this kind only")
    known.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    known.add_argument("--seeds", type=int, default=300, help="number of seeds (default: 300)")
    known.add_argument("--steps", type=int, default=300, help="steps of each history (default: 300)")
    args = known.parse_args()
    kinds = [args.kind] if args.kind else [*KINDS]
    with against_kept() as both:
        for seed in range(args.first, args.first + args.seeds):
            for kind in kinds:
                try:
                    asyncio.run(play(both, kind, seed, args.steps))
                except AssertionError as error:
                    print(error)
                    return 1
            print(f"\r{seed - args.first + 1} of {args.seeds} seeds: no difference", end="", flush=True)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
