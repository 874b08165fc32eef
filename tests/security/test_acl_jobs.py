"""Each role can do its job, all of it, and needs for that each thing that it is granted."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from streamfleet.common.errors import QueueFull, StreamfleetError
from streamfleet.common.settings import QueueSettings, load
from streamfleet.operator.access_rules import Role
from streamfleet.producer.client import Client
from tests.security.guarded import QUEUE, Guarded, narrowed
from tests.security.jobs import JOBS

NAMES = [f"{role}-{what}" for role in Role for what, _ in narrowed(role)]


@pytest.mark.parametrize("role", Role)
async def test_a_role_can_do_its_job(any_guarded: Guarded, role: Role) -> None:
    url = any_guarded.enlist(role)
    await JOBS[role](any_guarded, url)
    with any_guarded.admin() as admin:
        assert refusals(admin.execute_command("ACL", "LOG"), role) == EXPECTED[role]


# A client tries to cancel by itself once, before it asks a worker to.
EXPECTED = {role: ["lua command xack"] if role is Role.PRODUCER else [] for role in Role}


@pytest.mark.long
@pytest.mark.parametrize(("role", "words"), [(role, words) for role in Role for _, words in narrowed(role)], ids=NAMES)
async def test_nothing_is_granted_that_the_job_can_do_without(guarded: Guarded, role: Role, words: list[str]) -> None:
    """Without any part of its rules a role fails at its job, or is refused something on the way."""
    with contextlib.suppress(StreamfleetError, AssertionError):
        async with asyncio.timeout(20):
            await JOBS[role](guarded, guarded.enlist_with(role, words))
        with guarded.admin() as admin:
            assert refusals(admin.execute_command("ACL", "LOG"), role) == EXPECTED[role]
        pytest.fail("the job went as if nothing were missing")


async def test_large_requests_are_refused_beyond_the_bytes_of_a_lane_under_the_rules(any_guarded: Guarded) -> None:
    url = any_guarded.enlist(Role.PRODUCER)
    settings = load(QueueSettings, redis_url=url, queue=QUEUE, lane_bytes=1_048_576, max_body_bytes=262_144)
    async with Client(settings=settings) as client:
        with pytest.raises(QueueFull, match=r"1048576 bytes: .*STREAMFLEET_LANE_BYTES") as raised:
            await client.enqueue_many([{"body": {"prompt": "x" * 200_000}} for _ in range(9)])
        assert len(raised.value.accepted) in (4, 5), "as the server's allocator rounds"
        with pytest.raises(QueueFull, match="STREAMFLEET_LANE_BYTES"):
            await client.enqueue({"prompt": "x" * 200_000})
        await client.enqueue({"prompt": "x"})


def refusals(entries: list[Any], role: Role) -> list[str]:
    """Returns Redis's refusals to the role's user; less the client's introduction, unknown to releases before 7.2."""
    found = []
    for entry in entries:
        values = dict(zip(entry[::2], entry[1::2], strict=True)) if isinstance(entry, list) else entry
        if values["username"] == role and values["object"] != "client|setinfo":
            found.append(f"{values['context']} {values['reason']} {values['object']}")
    return found
