"""`python -m tests.upgrade`: a rollout from the last release to this checkout and back, then its mutants.

A mutant is the release with another text in one file: a side that cannot work beside this checkout, which the rollout
has to notice.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from streamfleet.common.queue_configuration import PROTOCOLS
from tests.fault.plan import Item, Kind, Step, body
from tests.fault.random_plan import SHORT, Size, make_plan
from tests.upgrade.release import Release, last
from tests.upgrade.rollout import play

WORKERS = 4
NO_FAULTS = {"kills": 0, "stops": 0, "restarts": 0, "others": 0, "points": 0, "poison": 0, "hanging": 0}
QUICK = replace(SHORT, requests=240, seconds=6, **NO_FAULTS)
FULL = replace(SHORT, requests=1_200, seconds=60, **NO_FAULTS)
STOPPED = Step(
    0.0,
    "many",
    tuple(
        Item(f"stopped-{n}", f"stopped-{n}", Kind.CANCELLED, "normal", {"body": body(1_000)}, 1.0) for n in range(10)
    ),
)
"""Requests that are cancelled while workers of the release run them; one worker alone has no room for all.

The mutant `key` writes two results for each of them, and for other requests only by chance.
"""
MUTANTS = {
    "protocol": (
        "common/streamfleet/common/queue_configuration.py",
        "PROTOCOLS = range(1, 2)",
        "PROTOCOLS = range(7, 8)",
        "VIOLATION exit:",
    ),
    "key": (
        "common/streamfleet/common/keys.py",
        'f"{self.base}result:',
        'f"{self.base}answer:',
        "VIOLATION duplicate:",
    ),
    "id": (
        "gateway/streamfleet/gateway/request_parameters.py",
        ".hexdigest()[:40]",
        ".hexdigest()[:39]",
        "VIOLATION audit:  call",
    ),
}
"""File of the release, what stands there, what stands there in the mutant, and how a finding about it begins."""


def roll(release: Release, size: Size, seed: int, mutant: str = "") -> list[str]:
    """Returns what a rollout has found; empty if nothing."""
    if not mutant and release.protocol not in PROTOCOLS:
        return [f"{release.name} has protocol {release.protocol}, this checkout knows {PROTOCOLS}: no rollout can pass"]
    plan = make_plan(seed, size, WORKERS)
    plan = replace(plan, producers=((STOPPED, *plan.producers[0]), *plan.producers[1:]))
    if mutant:  # it waits for what never comes
        plan = replace(plan, setup=replace(plan.setup, start_s=20.0, settle_s=20.0))
    with tempfile.TemporaryDirectory() as folder:
        variables = release.unpack(Path(folder))
        if mutant:
            name, text, other, _ = MUTANTS[mutant]
            path = Path(folder, name)
            before = path.read_text(encoding="utf-8")
            path.write_text(before.replace(text, other), encoding="utf-8")
            assert path.read_text(encoding="utf-8") != before, f"{name} has no {text!r}"
        return asyncio.run(play(variables, plan, size.requests // 6, keep=not mutant))


def noticed(release: Release, seed: int, mutant: str) -> str:
    """Returns what a small rollout has found about a mutant; empty if nothing."""
    found = roll(release, QUICK, seed, mutant)
    return next((line for line in found if line.startswith(MUTANTS[mutant][-1])), "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    release, began = last(), time.monotonic()
    print(
        f"seed {seed}: {release.name} ({release.commit[:12]}, protocol {release.protocol}) and this checkout",
        flush=True,
    )
    found = roll(release, FULL, seed)
    print("\n".join(found) or f"{FULL.requests} requests: nothing lost, nothing twice", flush=True)
    missed = []
    for mutant in MUTANTS:
        found_of_it = noticed(release, seed, mutant)
        print(f"mutant {mutant}: {found_of_it[:160] or 'NOT NOTICED'}", flush=True)
        missed += [] if found_of_it else [mutant]
    print(
        f"violations={len(found)} mutants={len(MUTANTS)} caught={len(MUTANTS) - len(missed)} seed={seed} "
        f"seconds={time.monotonic() - began:.0f}"
    )
    return 1 if found or missed else 0


if __name__ == "__main__":
    sys.exit(main())
