"""Stored responses where something breaks off: an odd answer, a lost reply of Redis, a full bound."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from streamfleet.common.protocol import Status
from streamfleet.gateway.broker.responses import ResponseRecord, stored_part
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.responses.service import MOST_INLINE_BYTES, Asked, Responses

LONG = "x" * MOST_INLINE_BYTES
RECORD = ResponseRecord("r-1", "acme", "default", root="r-1")


class Broker:
    """Redis as a test says."""

    def __init__(self) -> None:
        self.stands: ResponseRecord | None = None
        self.closed: list[str] = []
        self.items: list[str] = []

    async def add(self, record: ResponseRecord, look_ms: int) -> int | None:  # noqa: ARG002
        return None

    async def finish(self, record: ResponseRecord, changes: Any, items: Any = ()) -> bool:  # noqa: ARG002
        self.items = list(items)
        return False

    async def due(self, most: int, again_ms: int) -> list[str]:  # noqa: ARG002
        return ["broken", "gone"]

    async def records(self, ids: list[str]) -> list[ResponseRecord | None]:
        return [self.stands, None] if len(ids) > 1 else [self.stands]

    async def close_response(self, request_id: str) -> None:
        self.closed.append(request_id)


class Files:
    """A store of files that counts contents."""

    def __init__(self) -> None:
        self.there: set[str] = set()
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
    assert responses.broker.items == ["a-1"]


def test_a_record_that_breaks_holds_up_no_other(responses: Any) -> None:
    """No queue is there for the first one: that raises what nobody expects."""
    responses.broker.stands = RECORD
    assert asyncio.run(responses.sweep()) == 2
    assert responses.broker.closed == ["gone"]


def test_what_is_refused_leaves_nothing_in_the_store(responses: Any, files: Files) -> None:
    with pytest.raises(ApiError, match="have not ended"):
        asyncio.run(responses.open(RECORD, Asked({}, len(LONG), [LONG]), {}, existing=False))
    assert not files.there


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
