"""Bytes of request bodies that a gateway holds: bounded together, half of them for one tenant, none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from streamfleet.gateway import auth_context, metrics
from streamfleet.gateway.auth_context import SLOW_S, AuthContext
from streamfleet.gateway.authentication import Caller
from streamfleet.gateway.body import Bodies, Holding, read_body
from streamfleet.gateway.call import Call
from streamfleet.gateway.errors import ApiError
from tests.clocks import HandClock

MOST = 1_000
Receive = Callable[[], Awaitable[Any]]


def held() -> float:
    """Returns the value of the metric."""
    return float(metrics.BODY_BYTES._value.get())


def request(receive: Receive, length: int | None = None) -> Request:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return Request({"type": "http", "method": "POST", "headers": headers, "state": {"call": Call(0.0)}}, receive)


def sending(*parts: bytes, then: str = "http.request") -> Receive:
    """A client that sends these parts; then the last message of its body, or that it left."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": then, "body": b"", "more_body": False})

    async def receive() -> Any:
        return messages.pop(0)

    return receive


def refusal(work: Callable[[], None]) -> tuple[int, str, str, bool]:
    with pytest.raises(ApiError) as raised:
        work()
    error = raised.value
    return error.status, error.code or "", error.reason, "retry-after" in error.headers


def filled(bodies: Bodies, tenant: str | None, size: int) -> Holding:
    holding = bodies.hold(tenant)
    holding.add(size)
    return holding


def test_bodies_of_all_tenants_are_bounded_together() -> None:
    bodies = Bodies(MOST)
    first, second = filled(bodies, "a", 500), filled(bodies, "b", 400)
    third = bodies.hold("c")
    assert refusal(lambda: third.add(101)) == (503, "too_many_bytes", "body_bytes", True)
    third.add(100)
    assert refusal(lambda: third.add(1))[0] == 503
    first.release()
    third.add(300)
    second.release()
    third.release()


def test_one_tenant_has_half_of_them() -> None:
    bodies = Bodies(MOST)
    first, second = filled(bodies, "a", 400), bodies.hold("a")
    assert refusal(lambda: second.add(101)) == (429, "too_many_bytes", "body_bytes", True)
    second.add(100)
    filled(bodies, "b", 500).release()
    first.release()
    second.add(400)
    second.release()


def test_without_keys_there_is_nobody_to_keep_half_of_them_for() -> None:
    bodies = Bodies(MOST)
    first = filled(bodies, None, 600)
    second = filled(bodies, None, 400)
    assert refusal(lambda: second.add(1))[0] == 503
    first.release()
    second.release()


def test_one_body_alone_finds_room_whatever_the_limit() -> None:
    filled(Bodies(MOST), "a", 3 * MOST).release()


async def test_a_body_that_finds_no_room_is_refused_before_it_is_read() -> None:
    bodies = Bodies(MOST)
    other = filled(bodies, "a", 500)

    async def never() -> Any:
        pytest.fail("it was read")

    with pytest.raises(ApiError, match="503"):
        await read_body(request(never, length=501), 10_000, bodies.hold("b"))
    other.release()


async def test_a_body_that_does_not_tell_its_length_is_refused_while_it_is_read() -> None:
    bodies, before = Bodies(MOST), held()
    other = filled(bodies, "a", 500)
    asking = request(sending(b"x" * 400, b"x" * 101))
    with pytest.raises(ApiError, match="503") as raised:
        await read_body(asking, 10_000, bodies.hold("b"))
    asking.state.call.release()
    assert held() - before == 500
    assert b"x" * 400 not in kept_by(raised.value), "what had come is not kept with the error"
    other.release()


def kept_by(error: BaseException) -> list[object]:
    """Returns the values in the frames of an error's traceback, with those in lists among them."""
    values: list[object] = []
    trace = error.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            values += value if isinstance(value, list) else []
        trace = trace.tb_next
    return values


@pytest.mark.parametrize("then", ["http.request", "http.disconnect"])
async def test_bytes_are_held_until_the_call_lets_go_of_them(then: str) -> None:
    bodies, before = Bodies(MOST), held()
    asking = request(sending(b"x" * 400, b"x" * 200, then=then))
    reading = read_body(asking, 10_000, bodies.hold("a"))
    if then == "http.request":
        assert len(await reading) == 600
    else:
        with pytest.raises(ClientDisconnect):
            await reading
    assert held() - before == 600
    for _ in range(2):
        asking.state.call.release()
        assert held() == before
    filled(bodies, "b", MOST).release()


async def test_a_body_that_is_too_slow_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfleet.gateway.body.TIMEOUT_S", 0.05)
    bodies, before, never = Bodies(MOST), held(), asyncio.Event()
    some = sending(b"x" * 400)

    async def receive() -> Any:
        message = await some()
        if not message["more_body"]:
            await never.wait()
        return message

    asking = request(receive)
    with pytest.raises(ApiError, match="408"):
        await read_body(asking, 10_000, bodies.hold("a"))
    asking.state.call.release()
    assert held() == before


@pytest.mark.parametrize(("took_s", "checked"), [(SLOW_S, []), (SLOW_S + 0.1, [0])])
async def test_the_key_of_a_slow_body_is_checked_again(
    monkeypatch: pytest.MonkeyPatch, took_s: float, checked: list[int]
) -> None:
    """It may have ended meanwhile; no request counts twice."""
    clock, asked = HandClock(), list[int]()

    async def arrives(*_: object) -> bytes:
        await clock.sleep(took_s)
        return b"{}"

    async def admit(_: object, requests: int) -> None:
        asked.append(requests)

    monkeypatch.setattr(auth_context, "read_body", arrives)
    gateway: Any = SimpleNamespace(clock=clock, bodies=Bodies(10), authenticator=SimpleNamespace(admit=admit))
    nothing: Any = None
    context = AuthContext(nothing, gateway, nothing, Caller())
    assert (await context.read_body(10), asked) == (b"{}", checked)
