"""Plays a history against the kept scripts and today's, and tells the first difference with the steps to it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.scripts.compare import every_verb, kept
from tests.scripts.compare.twins import BEGIN, Different, TwinQueue, Twins, twins
from tests.scripts.harness import LIMITS
from tests.scripts.histories.steps import Step, make_history
from tests.scripts.test_histories import fleet_of, shortened

SHORTEN_S = 20.0


async def _every_verb(both: Twins, steps: Sequence[Step]) -> None:
    await every_verb.EveryVerb(both).run(steps)


async def _fleet(both: Twins, steps: Sequence[Step]) -> None:
    queue = TwinQueue(both, LIMITS)
    await queue.broker.ensure_groups()
    fleet = fleet_of(queue, BEGIN, steps)
    fleet.one_body = True
    if fleet.shape % 2:  # with tenants; see differences.NOT_PLAYED
        steps = [step for step in steps if step.verb != "delete"]
    with contextlib.suppress(AssertionError):  # what the fleet's own model finds is for test_histories to tell
        await fleet.run(steps)
        await fleet.drain()


class Kind(NamedTuple):
    """A kind of histories: how one is made from a seed and a length, and how it is played."""

    make: Callable[[int, int], list[Step]]
    play: Callable[[Twins, Sequence[Step]], Awaitable[None]]


KINDS: Mapping[str, Kind] = {"every-verb": Kind(every_verb.make, _every_verb), "fleet": Kind(make_history, _fleet)}


async def play(both: Twins, kind: str, seed: int, length: int) -> None:
    """Play a history.

    Raises:
        AssertionError: there is a difference; it is told with the steps that are enough for it.
    """

    async def once(steps: Sequence[Step]) -> None:
        async with both.opened():
            await KINDS[kind].play(both, steps)

    found: Different | None = None

    async def differ(steps: Sequence[Step]) -> None:
        nonlocal found
        try:
            await once(steps)
        except Different as difference:
            found = difference
            raise
        except Exception:  # noqa: BLE001 - what is left of a history may break its player's rules
            return

    steps = KINDS[kind].make(seed, length)
    try:
        await once(steps)
    except Different as first:
        short = await shortened(differ, steps, SHORTEN_S)
        raise AssertionError(
            "\n".join([f"{kind} {seed}: {found or first}", "shortened to:", *map(str, short)])
        ) from first


@contextlib.contextmanager
def against_kept() -> Iterator[Twins]:
    """The kept scripts and today's."""
    with tempfile.TemporaryDirectory(prefix="streamfleet-kept-") as folder:
        kept.unpack_kept(Path(folder))
        with twins(Path(folder)) as both:
            yield both
