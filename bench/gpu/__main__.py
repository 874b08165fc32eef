"""Prove on an NVIDIA GPU, within minutes, that the whole works and how fast; without a GPU, a dry run on CPU.

The steps, most valuable first. Steps that do not fit into the minutes are left out and named.
  1  the in-process worker starts, answers through Redis, and after SIGKILL the GPU's memory is free
  2  tokens/s of that worker, of vllm serve and of bare AsyncLLM
  3  batch sizes: tokens/s, p50, p95, p99, utilisation of the GPU
  6  streams from that worker through the gateway

Each result is written to gpu.json of --out at once. A run with the same --out adds the missing results; a step that
--steps names is measured again.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.gpu import nvidia
from bench.gpu.missing import ROOT, missing

if TYPE_CHECKING:
    from bench.core.reports import Report

OUT = ROOT / "build" / "bench"
END_S = 10.0
EXAMPLES = """\
examples:
  make gpu-proof MINUTES=20                     in the environment of python3, or PYTHON=/path/to/python
  python -m bench.gpu --steps 1,2 --minutes 9   the same without make; into build/bench/gpu
  python -m bench.gpu --minutes 9               later: what is left
  python -m bench.gpu --model /models/llama-8b  real weights, in place of random ones
  python -m bench.gpu --dry-run                 small sizes and model, no verdicts, 6 minutes; build/bench/gpu-dry
"""


def main() -> int:
    """Run; returns 0 if all pieces gave a result, 1 if something failed or is missing, 130 if interrupted."""
    args = arguments()
    dry = args.dry_run or not nvidia.present()
    if dry and not args.dry_run:
        say("no nvidia-smi on this machine: a dry run on CPU, which proves nothing about GPUs")
    if lines := missing(gpu=not dry):
        say("missing:\n  " + "\n  ".join(lines))
        return 1
    return prove(args, dry=dry)


def prove(args: argparse.Namespace, *, dry: bool) -> int:
    """Measure the chosen pieces and save each result; imports packages only after `missing` has checked them."""
    from bench.core.tables import markdown, targets_markdown
    from bench.gpu import tables
    from bench.gpu.pieces import DRY_SIZES, GPU_SIZES, engines, pieces
    from bench.gpu.schedule import Found, OutOfTime, Prover

    sizes = DRY_SIZES if dry else GPU_SIZES
    setup, model = chosen_setup(args, dry=dry)
    folder = args.out or OUT / ("gpu-dry" if dry else "gpu")
    report = opened(folder, {"dry run": dry, "model": model, "engine_arguments": " ".join(setup.argv)})
    results, now = report.data["pieces"], set[str]()

    def keep(name: str, found: Found) -> None:
        now.add(name)
        results[name] = found
        tables.fill(report)
        report.save(folder)

    every = [piece for piece in pieces(sizes) if piece.step in (args.steps or (piece.step,))]
    wanted = [piece for piece in every if args.steps or "failed" in results.get(piece.name, {"failed": ""})]
    if results:
        say(f"results are in {folder}; to do: {', '.join(piece.name for piece in wanted) or 'nothing'}")
    prover = Prover(engines(setup), args.minutes * 60, sizes.start_s, keep, say)
    status = 0
    try:
        with limited(args.minutes * 60):
            prover.run(wanted)
    except OutOfTime:
        say(f"{args.minutes:g} minutes are over")
    except KeyboardInterrupt:
        status = 130
    tables.fill(report)
    for table in report.tables:
        print(f"\n{table.title}\n{markdown(table)}")
    if dry:
        say("dry run: no verdicts")
    else:
        print(targets_markdown(report.targets))
    if left := [f"{piece.name} (step {piece.step})" for piece in wanted if piece.name not in now]:
        say(f"not run: {', '.join(left)}; the same command, given more minutes, goes on with that")
    failed = any("failed" in results[name] for name in now)
    say(f"results: {folder / 'gpu.json'}" if results else "nothing was run: too few minutes")
    return status or int(failed or not results)


def chosen_setup(args: argparse.Namespace, *, dry: bool) -> tuple[Any, str]:
    """Setup of the engines, and the model in words."""
    from bench.engine.setup import engine_setup
    from bench.gpu.shapes import RANDOM_WEIGHTS, shape_folder

    shape = args.shape or ("smollm2-135m" if dry else "llama-3-8b")
    more = [] if dry else ["--max-num-seqs", "1024"]
    more += [] if args.model else RANDOM_WEIGHTS
    setup = engine_setup(*more, *shlex.split(args.engine_args), folder=args.model or shape_folder(shape))
    return setup, args.model.name if args.model else f"{shape}, random weights"


def opened(folder: Path, settings: dict[str, Any]) -> Report:
    """The report in a folder, or a new one.

    Raises:
        SystemExit: the existing one is of another machine, model or kind of run.
    """
    from bench.core.reports import load, new_report

    report = new = new_report("gpu", settings)
    new.data = {"pieces": {}}
    if (folder / "gpu.json").is_file():
        report = load(folder / "gpu.json")
    for what, there, here in (("machine", report.machine, new.machine), ("settings", report.settings, settings)):
        if other := [name for name in {**there, **here} if there.get(name) != here.get(name)]:
            sys.exit(f"bench.gpu: {folder / 'gpu.json'} is of another {what} ({', '.join(other)}): name another --out")
    return report


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` inside when the time is over, even in a hang; raises children's limit of open files."""
    from bench.gpu.schedule import OutOfTime
    from streamfleet.worker.engine.engine_thread import descendants, end_all

    others = descendants(os.getpid())

    def ring(*_: object) -> None:
        end_all(descendants(os.getpid()) - others, END_S)  # otherwise the wait for a hung process would go on
        raise OutOfTime

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=20, metavar="N", help="for everything (default: %(default)s)")
    parser.add_argument("--steps", type=_steps, metavar="1,2", help="only these")
    parser.add_argument("--dry-run", action="store_true", help="on CPU; the default on a machine without nvidia-smi")
    parser.add_argument("--shape", metavar="NAME", help="of random weights: llama-3-8b (default), smollm2-135m")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a Hugging Face folder with weights")
    parser.add_argument("--engine-args", default="", metavar="WORDS", help="further arguments of vLLM, in one word")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where gpu.json is (default: build/bench/gpu)")
    return parser.parse_args()


def _steps(text: str) -> tuple[int, ...]:
    if not set(text.split(",")) <= {"1", "2", "3", "6"}:
        raise argparse.ArgumentTypeError(f"{text}: choose from 1,2,3,6")
    return tuple(int(part) for part in text.split(","))


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(f"bench.gpu: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
