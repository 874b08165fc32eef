"""pull.lua: deadlines that are judged at the pick, by the times that the worker tells."""

from __future__ import annotations

import json
import math
import random
from functools import partial
from hashlib import sha1
from typing import Any

import pytest

from streamfleet.common import jsontext, scripts
from streamfleet.common.numbers import output_limit
from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, infer_endpoint
from tests.scripts.conftest import open_queue
from tests.scripts.harness import NOW, Queue, ids
from tests.scripts.mutants import fails_without

NONE, OF_100 = "none", "13"
"""Classes of length: no limit of output, and one of 100 tokens."""


def asking(limit: int | None) -> str:
    return json.dumps({"messages": []} | ({"max_tokens": limit} if limit else {}))


def of(tenant: str, length: str = OF_100) -> str:
    """Class of a tenant's requests of a length."""
    return f"{length} {sha1(tenant.encode()).hexdigest()[:8]}"  # noqa: S324 - as the scripts hash names


async def error_of(queue: Queue, request_id: str) -> dict[str, Any]:
    found = await queue.dump()
    assert found[f"result:{request_id}"]["status"] == "expired"
    return dict(json.loads(found[f"result:{request_id}"]["error"])["error"])


@fails_without("judge: what has time starts", "not needed or left >= needed then return", "not needed then return")
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


@fails_without("judge: a first attempt that goes on", "if attempt > 1 or claimed[8] ~= '' then", "if attempt > 1 then")
async def test_a_run_that_goes_on_is_not_judged_because_it_needs_less(queue: Queue) -> None:
    lease = await queue.running(deadline=NOW + 10, body=asking(100))
    await queue.broker.release("w1", [lease], kept={lease: ("run", 10)})
    assert len((await queue.pull(needs={OF_100: 1_000})).claims) == 1


@fails_without("judge: what an earlier run has done is not known")
async def test_a_further_attempt_is_not_judged(queue: Queue) -> None:
    lease = await queue.running(deadline=NOW + 10, body=asking(100))
    await queue.retry("w1", lease)
    assert [claim.lease.attempt for claim in (await queue.pull(needs={OF_100: 1_000})).claims] == [2]


@fails_without("judge: lengths of tenants", "local shared, class = sharing(),", "local shared, class = false,")
async def test_a_tenants_class_is_of_the_lengths_that_it_has_had(queue: Queue) -> None:
    await queue.command("HSET", queue.keys.served, "l|a", ";13 32 10 0.1")
    await queue.add("high", "1000-0", tenant="a", deadline=NOW + 500, body=asking(100))
    await queue.add("high", "1001-0", tenant="b", id="b", deadline=NOW + 500, body=asking(100))
    pulled = await queue.pull(wanted=2, needs={of("a"): 1_000, of("b"): 1_000})
    assert [(claim.lease.stream_id, claim.length) for claim in pulled.claims] == [("1000-0", of("a", "6"))]
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


@fails_without("judge: runs of a tenant teach no other's class", argument="b,c")
@pytest.mark.parametrize("pair", ["b,c", ",b", "b,"])
async def test_runs_of_a_tenant_teach_no_other_tenants_class(queue: Queue, pair: str) -> None:
    """A tenant's needs judge no other tenant, and no request without a tenant."""
    tenants = pair.split(",")
    for number, tenant in enumerate(tenants):
        await queue.add("high", f"100{number}-0", deadline=NOW + 500, body=asking(100), tenant=tenant)
    slow = of(tenants[0]) if tenants[0] else OF_100
    pulled = await queue.pull(wanted=2, needs={slow: 1_000})
    assert (ids(pulled.claims), pulled.dropped) == (["1001-0"], 1)


async def test_without_tenants_a_name_is_part_of_no_class(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "source", partial(scripts.source, without=("tenants",)))
    async with open_queue(redis_url) as queue:
        await queue.add("high", "1000-0", deadline=NOW + 500, body=asking(100), tenant="a")
        assert (await queue.pull(needs={OF_100: 1_000})).dropped == 1


_NAMES = ("max_tokens", "max_completion_tokens", "max_output_tokens", "m\\u0061x_tokens", "max_pixels", "user", "stop")
_VALUES = ("8", "800", '"2000"', " 2.0", "1e3", "null", "true", "-1", "0", "99999999999", '"2_0"', '"many"', "[8]")
_OTHERS = ('{"max_tokens": 8}', '"max_tokens"', '"\\"max_tokens\\": 8"', '["max_tokens", 8]', '"\\u00e9}"', '"a]{b"')
_INPUTS = ('"messages": []', '"prompt": "hi"', '"input": "hi"', '"messages": [{"role": "user", "max_tokens": 3}]')


def bodies(seed: int | str, number: int) -> list[tuple[str, str]]:
    """Endpoints, '' where none is named, and bodies with up to four limits or what looks like them."""
    chance = random.Random(seed)

    def one() -> tuple[str, str]:
        names = [chance.choice(_NAMES) for _ in range(chance.randrange(5))]
        values = [chance.choice(_VALUES if chance.random() < 0.7 else _OTHERS) for _ in names]
        parts = [f'"{name}"{chance.choice(("", " "))}: {value}' for name, value in zip(names, values, strict=True)]
        parts.insert(chance.randrange(len(parts) + 1), chance.choice(_INPUTS))
        return chance.choice(("", CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS)), "{" + ", ".join(parts) + "}"

    return [one() for _ in range(number)]


def length_of(endpoint: str, text: str) -> str:
    """The class by the limit that the engine takes."""
    body = jsontext.parse(text)
    limit = output_limit(body, endpoint or infer_endpoint(body))
    return "none" if limit is None else str(int(2 * math.log2(limit + 1)))


@fails_without("lengths: a name may be written with escapes", argument="0")
@fails_without("lengths: of a name that is given twice, the last counts", argument="0")
@fails_without("lengths: a limit inside of another field is not the body's", argument="0")
@pytest.mark.parametrize("seed", range(3))
async def test_a_class_goes_by_the_limit_that_the_engine_takes(queue: Queue, seed: int) -> None:
    asked = bodies(seed, 300)
    queue = queue.with_limits(lane_limit=1_000)
    for number, (endpoint, text) in enumerate(asked):
        await queue.add("high", f"{1000 + number}-0", deadline=NOW + 9_000 + number, body=text, endpoint=endpoint)
    found: list[str] = []
    while len(found) < len(asked):
        found += [claim.length for claim in (await queue.pull(wanted=100, needs={})).claims]
    for (endpoint, text), length in zip(asked, found, strict=True):
        assert length == length_of(endpoint, text), (endpoint, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"max_tokens": 8, "prompt": "%s", "max_tokens": 800}',
        '{"max_tokens": 8, "prompt": "%s", "max_tok\\u0065ns": 800}',
        '{"prompt": "%s", "metadata": {"max_tokens": 8}}',
    ],
)
@pytest.mark.parametrize("size", [100, 20_000, 90_000, 300_000])
async def test_a_long_body_is_not_taken_for_one_with_a_smaller_limit(queue: Queue, size: int, text: str) -> None:
    queue = queue.with_limits(max_entry_bytes=1_000_000)
    body = text % ("x" * size)
    await queue.add("high", "1000-0", deadline=NOW + 9_000, body=body, endpoint=COMPLETIONS)
    (claim,) = (await queue.pull(needs={})).claims
    assert claim.length == (length_of(COMPLETIONS, body) if size == 100 else "none")


_TOOLS = (
    '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]'
)


@fails_without(
    "lengths: a limit is known whatever follows it", "#body - rest < MOST_DECODED", "false", argument=', "stop": ["a"]'
)
@pytest.mark.parametrize(
    "behind", ["", ', "temperature": 0', ', "stop": ["a", "}"]', f', {_TOOLS}, "response_format": {{"type": "text"}}']
)
async def test_the_limit_of_a_long_body_is_known_whatever_follows_it(queue: Queue, behind: str) -> None:
    queue = queue.with_limits(max_entry_bytes=1_000_000)
    for number, size in enumerate((100, 18_000, 40_000, 60_000)):
        body = '{"messages": [{"content": "' + size * "x" + '"}], "max_tokens": 100' + behind + "}"
        await queue.add("high", f"100{number}-0", deadline=NOW + 9_000, body=body)
    assert [claim.length for claim in (await queue.pull(wanted=4, needs={})).claims] == [OF_100] * 4


_TEXTS = ("0x10", "0X1p3", "inf", "nan", "1e2", "5.", "-0", " 8 ", "1e400", "9" * 401, "0" * 400 + "8", ".", "e5")
_UNDERSCORES = ("_5", "5_", "5__0", "1_2_3", "1_e5")
_LONG = ("9" * 39, "9" * 401, "1" + "0" * 500, "-" + "9" * 401, "8." + "0" * 400)


@fails_without("lengths: what is no number to Python is none", "%s*([%d.eE+-]+)%s*$", "%s*(.-)%s*$", argument='"0x10"')
@pytest.mark.parametrize("value", [*(f'"{text}"' for text in (*_TEXTS, *_UNDERSCORES)), *_LONG])
async def test_a_limit_is_the_number_that_python_reads(queue: Queue, value: str) -> None:
    body = '{"prompt": "hi", "max_tokens": ' + value + ', "stop": ["a"]}'
    await queue.add("high", "1000-0", deadline=NOW + 9_000, body=body, endpoint=COMPLETIONS)
    (claim,) = (await queue.pull(needs={})).claims
    assert claim.length == length_of(COMPLETIONS, body)
