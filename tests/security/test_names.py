"""No name that anybody makes up leads outside its queue; Python and Lua agree on what a usable name is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from streamfleet.common import scripts
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.keys import Keys
from streamfleet.common.limits import QueueLimits
from streamfleet.common.protocol import LANES, check_name, is_request_id
from streamfleet.worker.housekeeping import CancelRequestProcessor
from tests.security.guarded import Guarded
from tests.support.redis_server import RedisServer
from tests.waiting import eventually

KEYS = Keys("q")
NASTY = [
    b"a}b", b"{a}", b"}{", b"}:lane:high", b"}:result:x", b"{other}:lane:high", b"../../other", b"..",
    b"/etc/passwd", b"*", b"[a-z]", b"?", b"\\", b"a\\*", b"'", b'"', b"`id`", b"$(id)", b"${IFS}", b"%s", b"%00",
    b"\0", b"a\0b", b"\n", b"a\nb", b"a\r\nSET x y", b"a b", b" a", b"\t", b"\x7f", b"\xff", b"\xc3\xa9",
    b"\xe2\x80\xae", b"", b"a" * 256, b"a" * 257, b"high:1-1", b"high:1790000000000-0", b"HIGH:1-1", b"x:0-0",
    b"high:1-1x", b"high:-1-1", b"1-1", b":1-1", b"high:1-", b"lane:high", b"dead", b"constructor", b"__proto__",
    b"workers", b"~", b"-", b"+", b"$", b">", b"0",
]  # fmt: skip
bytes_like_names = st.one_of(
    st.binary(max_size=300),
    st.sampled_from(NASTY),
    st.text(st.sampled_from("ab:{}-0123456789*~ \n\x7f"), max_size=40).map(str.encode),
    st.builds(lambda a, b, c: f"{a}:{b}-{c}".encode(), st.text("abZ", max_size=3), st.integers(), st.integers()),
)


@pytest.fixture(scope="module")
def server() -> Iterator[redis.Redis]:
    with RedisServer() as running, redis.Redis.from_url(running.url) as client:
        yield client


def usable_in_lua(server: redis.Redis, names: Sequence[bytes]) -> list[bool]:
    """Returns the verdict of lua/lib/entry.lua on each name, run by a real server."""
    library = "".join(piece.text for piece in scripts.pieces("requeue") if piece.path.startswith("lib/"))
    loop = "local found = {} for i = 2, #ARGV do found[i - 1] = usable_name(ARGV[i]) and 1 or 0 end return found"
    shared = KEYS.shared()
    reply = server.eval(
        f"{library}\n{loop}",
        len(shared),
        *shared,
        QueueLimits().encoded(KEYS.base),
        *names,
    )
    return [bool(each) for each in reply]


def usable_in_python(name: bytes) -> bool:
    try:
        return bool(check_name(name.decode("utf-8"), "id"))
    except (UnicodeDecodeError, InvalidRequest):
        return False


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(bytes_like_names, min_size=1, max_size=50))
@example(NASTY)
def test_python_and_lua_agree_on_every_name(server: redis.Redis, names: list[bytes]) -> None:
    assert usable_in_lua(server, names) == [usable_in_python(name) for name in names]


def test_each_single_byte_is_judged_alike(server: redis.Redis) -> None:
    names = [prefix + bytes([byte]) + suffix for byte in range(256) for prefix in (b"", b"a") for suffix in (b"", b"a")]
    assert usable_in_lua(server, names) == [usable_in_python(name) for name in names]


@given(bytes_like_names)
@example(b"}:lane:high")
@example(b"{other}")
def test_a_usable_name_makes_keys_of_its_queue_only(name: bytes) -> None:
    if not usable_in_python(name):
        return
    text = name.decode()
    made = [KEYS.result(text), KEYS.request(text), KEYS.reply(text), KEYS.tokens(text)]
    assert all(key.startswith("{q}:") for key in made)
    assert {key_slot(key.encode()) for key in made} == {key_slot(b"{q}:")}
    fixed = {*KEYS.shared(), KEYS.maintain, KEYS.cancel_requests}
    assert not {*made} & fixed


def test_what_stands_for_a_request_without_an_id_cannot_be_taken() -> None:
    for lane in LANES:
        place = f"{lane}:1790000000000-0"
        assert is_request_id(place), "others may ask for it to be cancelled"
        with pytest.raises(InvalidRequest, match="is reserved"):
            check_name(place, "id")
    assert not is_request_id("urgent:1-0")
    assert not is_request_id("high:1-0 ")
    assert not is_request_id("")


async def test_entries_with_any_names_leave_nothing_outside_their_queue(guarded: Guarded) -> None:
    """Put in by hand, and ended in every way that an entry can end."""
    chosen = random.Random(7)
    names = NASTY + [chosen.randbytes(chosen.randint(1, 300)) for _ in range(60)]
    async with guarded.broker() as broker:
        with redis.Redis.from_url(guarded.server.url) as admin:
            for number, name in enumerate(names):
                ended = {b"deadline": b"1"} if number % 2 else {}
                fields: dict[bytes, bytes] = {b"body": b"{}", b"id": name, b"reply": names[-number], **ended}
                admin.xadd(KEYS.lane(LANES[number % 4]), fields)
                admin.xadd(KEYS.cancel_requests, {b"id": name})

            async def done() -> bool:
                pulled = await broker.pull("w1", 50)
                for claim in pulled.claims:
                    assert claim.lease.request_id == claim.lease.request_id.strip()
                await broker.reclaim(0, 1)
                return (await broker.audit()).outstanding == 0

            await eventually(done, 10)
            found = list(admin.scan_iter())
            assert [key for key in found if not key.startswith(b"{q}:")] == []
            known = {key.partition("}:")[2].partition(":")[0] for key in (*KEYS.shared(), KEYS.cancel_requests)}
            assert {key.split(b":")[1].decode() for key in found} <= known | {"result", "reply", "request"}
            assert len([key for key in found if key.startswith(b"{q}:result:")]) >= len(names) - 5


async def test_cancel_requests_with_any_names_are_seen_to(guarded: Guarded) -> None:
    with redis.Redis.from_url(guarded.server.url) as admin:
        for name in (*NASTY, b"good"):
            admin.xadd(KEYS.lane("high"), {b"id": name, b"body": b"{}"})
        for name in NASTY:
            admin.xadd(KEYS.cancel_requests, {b"id": name})
        admin.xadd(KEYS.cancel_requests, {b"other": b"x" * 200_000})
        admin.xadd(KEYS.cancel_requests, {b"id": b"good", b"more": b"x"})
        async with guarded.broker() as broker:
            rounds = [await CancelRequestProcessor(broker).process(500) for _ in range(5)]
            assert sum(rounds) == len(NASTY) + 2
            assert await broker.result("good") is not None
        usable = {KEYS.result(name.decode()).encode() for name in NASTY if usable_in_python(name)}
        assert {*admin.scan_iter("{q}:result:*")} == usable | {KEYS.result("good").encode()}
        assert admin.xlen(KEYS.cancel_requests) == 0


async def test_a_round_sees_to_so_many_at_most_and_goes_on(guarded: Guarded) -> None:
    async with guarded.broker() as broker:
        for number in range(25):
            await broker.connection.command("XADD", KEYS.lane("low"), "*", "id", f"r-{number}", "body", "{}")
            await broker.ask_to_cancel(f"r-{number}")
        assert [await CancelRequestProcessor(broker).process(10) for _ in range(4)] == [10, 10, 5, 0]
        results = await broker.results([f"r-{number}" for number in range(25)])
    assert [result and result.status for result in results] == ["cancelled"] * 25
