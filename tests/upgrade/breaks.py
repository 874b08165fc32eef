"""`python -m tests.upgrade.breaks`: today's code broken as a release may break it; each rollout has to notice.

Each break is made in a copy of today's sources, and is consistent in itself: workers of that copy get along among
themselves, but not with those of a kept release. About a quarter of a minute each.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from redis.exceptions import ResponseError

from streamfleet.cli.demo.server import find_servers
from tests.servers import newest
from tests.upgrade.kept import copy_of_today, kept, unpack
from tests.upgrade.rollout import play

LUA = "common/lua/lib"
KEYS = "common/keys.py"
Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Break:
    """A release's change without a thought for the others.

    Attributes:
        name: short.
        edits: (file below `streamfleet/`, text, what stands in its place).
    """

    name: str
    edits: tuple[Edit, ...]


BREAKS = (
    Break(
        "tries have another form",
        (
            (f"{LUA}/attempts.lua", "table.concat({tostring(attempts)", "'v2:' .. table.concat({tostring(attempts)"),
            (f"{LUA}/attempts.lua", "string.match(record or '', '^%d+')", "string.match(record or '', '^v2:(%d+)')"),
        ),
    ),
    Break(
        "fields of tries and members of delayed are named otherwise",
        (
            (f"{LUA}/keys.lua", "return lane .. '|' .. id", "return lane .. '/' .. id"),
            (f"{LUA}/entry.lua", "'^([1-9])|(%d+)%-(%d+)$'", "'^([1-9])/(%d+)%-(%d+)$'"),
        ),
    ),
    Break(
        "members of ready sets are encoded otherwise",
        (
            (f"{LUA}/entry.lua", "string.char(64 + #ms)", "string.char(96 + #ms)"),
            (f"{LUA}/entry.lua", "string.char(64 + #seq)", "string.char(96 + #seq)"),
            (f"{LUA}/entry.lua", "'^%u(%d+)%-%u(%d+)$'", "'^%l(%d+)%-%l(%d+)$'"),
        ),
    ),
    Break("ready sets have another key", ((KEYS, "ready:{lane}", "waiting:{lane}"),)),
    Break("delayed ones have another key", ((KEYS, "{self.base}delayed", "{self.base}later"),)),
    Break(
        "the consumer group has another name",
        ((KEYS, 'GROUP = "workers"', 'GROUP = "fleet"'), (f"{LUA}/keys.lua", "'workers', '~'", "'fleet', '~'")),
    ),
    Break("notifications are marked otherwise", ((f"{LUA}/result.lua", "'notified:' .. reply", "'told:' .. reply"),)),
)


def broken(which: Break, folder: Path) -> Path:
    """A copy of today's sources with the break in it.

    Raises:
        ValueError: a text is not there any more: the code was changed, and the break has to be changed along with it.
    """
    root = copy_of_today(folder)
    for name, old, new in which.edits:
        path = root / "streamfleet" / name
        text = path.read_text(encoding="utf-8")
        if old not in text:
            raise ValueError(f"{which.name}: {name} does not hold {old!r} any more")
        path.write_text(text.replace(old, new), encoding="utf-8")
    return root


async def noticed(which: Break) -> str:
    """Returns the rollout's complaint about it; empty for none."""
    with tempfile.TemporaryDirectory(prefix="streamfleet-break-") as name:
        folder = Path(name)
        today = broken(which, folder / "today")
        try:
            played = await play(unpack(kept()[-1], folder), today, newest(find_servers()))
        except (AssertionError, TimeoutError, ResponseError) as error:
            return f"{type(error).__name__}: {error}"
    shutil.rmtree(played.folder, ignore_errors=True)
    return "; ".join([f"{len(played.violations)} violations", *played.violations[:3]]) if played.violations else ""


async def main(wanted: list[str]) -> int:
    """Play all breaks, or those whose names hold one of the words; 1 when one was not noticed."""
    unnoticed = 0
    for which in BREAKS:
        if wanted and not any(word in which.name for word in wanted):
            continue
        said = await noticed(which)
        unnoticed += not said
        print(f"{which.name}: {said or 'NOT NOTICED'}", flush=True)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
