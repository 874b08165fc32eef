"""examples/many_queues.py: requests go to the queue of their id, and come back from whichever it was."""

from __future__ import annotations

from typing import Any

from bench.shards.cluster import recipe
from streamfleet.common.broker.types import Completion
from streamfleet.common.connection import Connection
from streamfleet.common.keys import Keys
from streamfleet.common.protocol import Lane, Status
from tests.broker import Broker

QUEUES = ("many-a", "many-b", "many-c")
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
ANSWER = '{"choices":[{"message":{"role":"assistant","content":"y"},"finish_reason":"stop"}]}'


async def answer_all(url: str) -> dict[str, list[str]]:
    """Take whatever waits in each queue, and answer it; the ids by queue."""
    found: dict[str, list[str]] = {}
    for queue in QUEUES:
        broker = Broker(Connection(url), Keys(queue))
        try:
            await broker.ensure_groups()
            claims = (await broker.pull("w1", 64)).claims
            found[queue] = [claim.lease.request_id for claim in claims]
            done = [Completion(claim.lease, Status.SUCCEEDED, {"response": ANSWER}, claim.reply) for claim in claims]
            if done:
                await broker.complete("w1", done)
        finally:
            await broker.close()
    return found


async def test_requests_go_to_the_queue_of_their_id_and_come_back(redis_url: str) -> None:
    async with recipe().ManyQueues(QUEUES, redis_url) as fleet:
        handles = [await fleet.enqueue(BODY, id=f"r-{number}", lane=Lane.HIGH) for number in range(30)]
        unnamed = await fleet.enqueue(BODY)
        taken = await answer_all(redis_url)
        assert all(taken.values()), "every queue has some"
        wanted = {handle.id: recipe().queue_for(handle.id, QUEUES) for handle in [*handles, unnamed]}
        assert {name: queue for queue, names in taken.items() for name in names} == wanted
        results = [result async for result in fleet.results([*handles, unnamed], timeout=10)]
        assert {result.id for result in results} == set(wanted)
        assert all(result.status == "succeeded" for result in results)
        again = await fleet.enqueue(BODY, id="r-7")
        assert again.existing, "the same id is the same request, as in one queue"
        assert (await fleet.client_of("r-7").result("r-7", timeout=0)).status == "succeeded"
