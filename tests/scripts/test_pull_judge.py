"""pull.lua: deadlines that are judged at the pick, by the times that the worker tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scripts.harness import NOW, Queue, ids

NONE, OF_100 = "none", "13"
"""Classes of length: no limit of output, and one of 100 tokens."""


def asking(limit: int | None) -> str:
    return json.dumps({"prompt": "hi"} | ({"max_tokens": limit} if limit else {}))


async def error_of(queue: Queue, request_id: str) -> dict[str, Any]:
    found = await queue.dump()
    assert found[f"result:{request_id}"]["status"] == "expired"
    return dict(json.loads(found[f"result:{request_id}"]["error"])["error"])


async def test_what_cannot_be_done_in_time_is_not_started_and_says_so(queue: Queue) -> None:
    await queue.add("high", "1000-0", id="late", deadline=NOW + 1_999, body=asking(100), reply="me")
    await queue.add("high", "1001-0", id="in-time", deadline=NOW + 2_000, body=asking(100))
    pulled = await queue.pull(wanted=2, needs={OF_100: 2_000, NONE: 9_000})
    assert (ids(pulled.claims), pulled.dropped) == (["1001-0"], 1)
    error = await error_of(queue, "late")
    assert (error["code"], error["param"]) == ("deadline_out_of_reach", "deadline")
    assert "1999 ms are left" in error["message"]
    assert "at least 2000 ms" in error["message"]
    dump = await queue.dump()
    assert dump["counts"] == {"staged": "2", "expired": "1"}
    assert (dump["result:late"]["attempt"], dump["dead"][0]["_attempts"]) == ("0", "0")
    assert dump["reply:me"][0]["status"] == "expired"
    assert list(dump["lane:high"]["entries"]) == ["1001-0"]


async def test_a_claim_tells_its_class_of_length(queue: Queue) -> None:
    for number, limit in enumerate((None, 100, 1)):
        await queue.add("high", f"100{number}-0", deadline=NOW + 1_000 + number, body=asking(limit))
    pulled = await queue.pull(wanted=3, needs={})
    assert [claim.length for claim in pulled.claims] == [NONE, OF_100, "2"]


@pytest.mark.parametrize("needs", [None, {"14": 10**9}])
async def test_nothing_is_judged_by_who_does_not_know(queue: Queue, needs: dict[str, int] | None) -> None:
    await queue.add("high", "1000-0", deadline=NOW + 1, body=asking(100))
    (claim,) = (await queue.pull(needs=needs)).claims
    assert claim.length == ("" if needs is None else OF_100)


async def test_what_has_no_deadline_is_not_judged(queue: Queue) -> None:
    await queue.add("high", "1000-0", body=asking(100))
    (claim,) = (await queue.pull(needs={OF_100: 10**9})).claims
    assert claim.length == ""


async def test_a_run_that_goes_on_is_not_judged_because_it_needs_less(queue: Queue) -> None:
    lease = await queue.running(deadline=NOW + 10, body=asking(100))
    await queue.broker.release("w1", [lease], kept={lease: ("run", 10)})
    assert len((await queue.pull(needs={OF_100: 1_000})).claims) == 1


async def test_a_further_attempt_is_not_judged(queue: Queue) -> None:
    lease = await queue.running(deadline=NOW + 10, body=asking(100))
    await queue.retry("w1", lease)
    assert [claim.lease.attempt for claim in (await queue.pull(needs={OF_100: 1_000})).claims] == [2]


async def test_a_tenants_class_is_of_the_lengths_that_it_has_had(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.served, "l|a", ";13 32 10 0.1")
    await queue.add("high", "1000-0", tenant="a", deadline=NOW + 500, body=asking(100))
    await queue.add("high", "1001-0", tenant="b", id="b", deadline=NOW + 500, body=asking(100))
    pulled = await queue.pull(wanted=2, needs={OF_100: 1_000})
    assert [(claim.lease.stream_id, claim.length) for claim in pulled.claims] == [("1000-0", "6")]
    await error_of(queue, "b")
    served = (await queue.dump())["served"]
    assert served["t|b"].split()[:6] == ["0", "0", "0", "0", "0", "1"], "missed, and charged nothing"
    assert [field for field in served if field.startswith("c|")] == ["c|2|1000-0"]


async def test_an_id_that_has_a_result_is_a_duplicate_and_not_late(queue: Queue) -> None:
    lease = await queue.running(id="r1", body=asking(100))
    await queue.add("high", "1001-0", id="r1", deadline=NOW + 10, body=asking(100))
    await queue.complete("w1", lease)
    assert (await queue.pull(needs={OF_100: 1_000})).dropped == 1
    assert (await queue.dump())["counts"] == {"staged": "2", "succeeded": "1", "duplicate": "1"}
