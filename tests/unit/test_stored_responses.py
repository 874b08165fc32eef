"""Stored responses where something breaks off: an odd answer, a lost reply of Redis, a full bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from streamfleet.common.protocol import Status
from streamfleet.gateway import inference
from streamfleet.gateway.batch_records import Part
from streamfleet.gateway.broker.responses import ChainCode, ResponseRecord, Turn, stored_part
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.responses.service import MOST_INLINE_BYTES, Asked, Responses

LONG = "x" * MOST_INLINE_BYTES
RECORD = ResponseRecord("r-1", "acme", "default", root="r-1")


class Broker:
    """Redis as a test says."""

    def __init__(self) -> None:
        self.stands: ResponseRecord | None = None
        self.closed: list[str] = []
        self.named: list[str] = []

    async def add(self, record: ResponseRecord, look_ms: int, stale_ms: int = 0) -> int | None:  # noqa: ARG002
        return None

    async def finish(self, record: ResponseRecord, changes: Any, items: Any = ()) -> bool:  # noqa: ARG002
        self.named = list(items)
        return False

    async def due(self, most: int, again_ms: int) -> list[str]:  # noqa: ARG002
        return ["broken", "gone"]

    async def records(self, ids: list[str]) -> list[ResponseRecord | None]:
        return [self.stands, None] if len(ids) > 1 else [self.stands]

    async def items(self, owner: str, ids: list[str]) -> list[str]:  # noqa: ARG002
        return ["r-1"]

    async def chain(self, request_id: str, most_bytes: int) -> tuple[ChainCode, list[Turn]]:  # noqa: ARG002
        return ChainCode.READ, [Turn("completed", "r-1", "@20000 input", "@30000 output")]

    async def close_response(self, request_id: str) -> None:
        self.closed.append(request_id)


class Files:
    """A store of files that counts contents."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.loaded = 0
        self.store, self.broker = (
            self,
            SimpleNamespace(connection=None, names=SimpleNamespace(base="g"), hold=self.hold),
        )

    def new_name(self, owner: str) -> str:
        return f"{owner}.{len(self.there)}"

    async def hold(self, names: list[str], ms: int) -> None:
        pass

    async def put(self, name: str, data: bytes) -> None:  # noqa: ARG002
        self.there.add(name)

    async def read(self, parts: list[Part]) -> AsyncIterator[bytes]:
        self.loaded += sum(part.bytes for part in parts)
        yield b"[]" if parts[0].name == "output" else b"{}"

    async def discard(self, names: list[str]) -> None:
        self.there.difference_update(names)


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def responses(files: Files, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("streamfleet.gateway.responses.service.ResponseBroker", lambda *_: Broker())
    stands_in: Any = files
    return Responses(stands_in, None, None, None, stores=True)  # type: ignore[arg-type]


def result_with(*output: Any) -> Any:
    return SimpleNamespace(ok=True, status=Status.SUCCEEDED, response={"output": list(output)}, fields={})


def test_only_items_with_an_id_of_text_can_be_referred_to(responses: Any) -> None:
    odd: list[Any] = [
        {"type": "function_call"},
        {"id": None},
        {"id": 5},
        {"id": []},
        {"id": "odd *"},
        "text",
        {"id": "a-1"},
    ]
    asyncio.run(responses.finish(RECORD, result_with(*odd)))
    assert responses.broker.named == ["a-1"]


def test_a_record_that_breaks_holds_up_no_other(responses: Any) -> None:
    """No queue is there for the first one: that raises what nobody expects."""
    responses.broker.stands = RECORD
    asyncio.run(responses.sweep())
    assert responses.broker.closed == ["gone"]


def test_what_is_refused_leaves_nothing_in_the_store(responses: Any, files: Files) -> None:
    with pytest.raises(ApiError, match="have not ended"):
        asyncio.run(responses.open(RECORD, Asked({}, len(LONG), [LONG]), {}, existing=False))
    assert not files.there


def test_a_try_whose_first_one_died_before_it_stored_replaces_what_it_has_read(responses: Any) -> None:
    """Where another has stored the new one meanwhile, that stands."""
    responses.broker.stands = replace(RECORD, status="completed", created_ms=5)
    asked = Asked({}, 2, stale_ms=5)
    with pytest.raises(ApiError, match="have not ended"):  # it was to be stored
        asyncio.run(responses.open(RECORD, asked, {}, existing=True))
    stands = responses.broker.stands = replace(RECORD, created_ms=6)
    assert asyncio.run(responses.open(RECORD, asked, {}, existing=True)) == stands


@pytest.mark.parametrize("stands", [True, False], ids=["Redis's answer was lost", "another gateway was first"])
def test_only_what_no_record_names_is_deleted(responses: Any, files: Files, stands: bool) -> None:
    async def ends() -> None:
        broker = responses.broker
        finish = broker.finish

        async def finishing(record: ResponseRecord, changes: Any, items: Any = ()) -> bool:
            broker.stands = replace(RECORD, output=changes["output"]) if stands else RECORD
            assert stored_part(changes["output"]) is not None
            return bool(await finish(record, changes, items))

        broker.finish = finishing
        await responses.finish(RECORD, result_with(LONG))

    asyncio.run(ends())
    assert len(files.there) == stands


HOLDS = {
    "shown": 70_000,
    "input": 20_000,
    "previous_response_id": 50_000,
    "item_reference": 30_000,
}


@pytest.mark.parametrize("reads", HOLDS)
def test_nothing_is_loaded_before_there_is_room_for_it(responses: Any, files: Files, reads: str) -> None:
    stored = replace(RECORD, input="@20000 input", response="@40000 response", output="@30000 output")
    record = replace(stored, status="completed")
    responses.broker.stands = record
    held: list[int] = []

    def hold(size: int) -> None:
        held.append(size)
        raise ApiError(429, "no room", "too_many_bytes")

    async def read() -> None:
        caller = SimpleNamespace(owner="r", tenant="acme")
        if reads == "shown":
            await responses.shown(record, hold)
        elif reads == "input":
            await responses.input_of(record, hold)
        elif reads == "previous_response_id":
            await responses.read(caller, {"input": "hi", reads: "resp_r-1"}, 10, 10**6, hold)
        else:
            await responses.read(caller, {"input": [{"type": reads, "id": "msg_1"}]}, 10, 10**6, hold)

    with pytest.raises(ApiError, match="no room"):
        asyncio.run(read())
    assert (held, files.loaded) == ([HOLDS[reads]], 0)


def test_a_body_counts_as_held_until_it_is_stored() -> None:
    steps: list[str] = []

    async def opens(*_: Any, **__: Any) -> ResponseRecord:
        steps.append("stored")
        return RECORD

    context: Any = SimpleNamespace(
        caller=SimpleNamespace(tenant="acme"),
        call=SimpleNamespace(release=lambda: steps.append("released")),
        gateway=SimpleNamespace(responses=SimpleNamespace(open=opens)),
    )
    handle: Any = SimpleNamespace(id="r-1", existing=False)
    none: Any = None
    enqueued = inference.Enqueued(context, none, none, handle, None, "m")
    asyncio.run(inference._store(enqueued, Asked({}, 10), "default"))
    assert steps == ["stored", "released"]
