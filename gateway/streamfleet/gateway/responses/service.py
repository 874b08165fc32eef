"""Stored responses of one gateway process: open when a request is enqueued, finished with its result, read by chains.

The gateway that answers a request finishes its response. Where that one died, or nobody waits, another does: whoever
reads an open response looks for its result first, and every gateway looks through the open ones. vLLM's own store is
never used: the request of a later turn has the whole conversation, put together from what each turn has stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from streamfleet.common.clock import Clock
from streamfleet.common.errors import InvalidRequest, RequestLost, ResultTimeout, StreamfleetError, UnknownRequest
from streamfleet.common.jsontext import canonical
from streamfleet.common.protocol import RESPONSES, Status, comparable, hashed
from streamfleet.common.results import Result
from streamfleet.gateway.authentication import Caller
from streamfleet.gateway.background import Repeated
from streamfleet.gateway.batch_records import Part
from streamfleet.gateway.broker.responses import (
    KEPT_MS,
    MOST_RESPONSES,
    PREFIX,
    ChainCode,
    ResponseBroker,
    ResponseNames,
    ResponseRecord,
    stored_part,
    text_bytes,
)
from streamfleet.gateway.broker.webhooks import WebhooksFull
from streamfleet.gateway.errors import (
    FULL_S,
    LIMITED,
    ApiError,
    exception_to_api_error,
    result_to_api_error,
    retry_after,
)
from streamfleet.gateway.files.files import Files
from streamfleet.gateway.files.store import ContentGone
from streamfleet.gateway.offload import offload
from streamfleet.gateway.queues import Queues
from streamfleet.gateway.request_parameters import belongs_to, read_flag
from streamfleet.gateway.webhooks.service import Webhooks
from streamfleet.producer.sender import conflict
from streamfleet.producer.status import QUEUED, RUNNING

log = structlog.get_logger(__name__)
MOST_INLINE_BYTES = 16_384
"""Of a text in Redis; a longer one is in the store of files."""
SWEEP_S, SWEPT_AT_ONCE = 1.0, 100
SOON_MS, LOOK_MS = 1_000, 30_000
"""Shortest and longest time between two looks at an open response; the gateway that answers one finishes it earlier."""
UNKNOWN_MS = 30_000
"""After this time, a request unknown to its queue is lost."""
SHOWN = (
    *("instructions", "model", "metadata", "max_output_tokens", "parallel_tool_calls", "reasoning", "temperature"),
    *("text", "tool_choice", "tools", "top_p", "truncation", "user"),
)
"""Fields of a body that a response in the background shows until it has an answer."""
ITEMS_PAUSES_S = (0.0, 0.0, 0.2, 0.6, 1.2)
"""Pauses before each look for items: whoever answers a request, and its worker, may need a moment to store them."""
NEWEST = 20
"""Of a tenant's responses, those that are finished for a caller that refers to an item of one."""
_ITEM_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
CONTINUED = ("completed", "incomplete")
"""Statuses of responses that a chain may go on from."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call of the Responses API asks of the gateway.

    Attributes:
        body, size: its body, with the conversation so far in front of its own input; its bytes as it came.
        input: its own input items.
        added: bytes of that conversation.
        store: True if it is to be stored.
        previous, root: as in `ResponseRecord`; both empty without a chain.
        said: fields of the response object that the gateway says.
        background, callback_url, digest: as in `ResponseRecord`.
        known: the response, if an earlier try has stored it; then nothing is added to its body.
        gone: True if its request and result are not in their queue any more: then `known` is the answer.
        stale_ms: `created_ms` of a stored response that cannot be the answer: the new one takes its place; 0 for none.
    """

    body: dict[str, Any]
    size: int
    input: list[Any] = field(default_factory=list)
    added: int = 0
    store: bool = True
    previous: str = ""
    root: str = ""
    said: dict[str, Any] = field(default_factory=dict)
    background: bool = False
    callback_url: str = ""
    digest: str = ""
    known: ResponseRecord | None = None
    gone: bool = False
    stale_ms: int = 0


class Responses:
    """Stored responses of one process.

    Args:
        files: the store of long texts.
        queues: hold the requests.
        webhooks: announce ends.
        clock: for the pauses between looks.
        stores: True if a response is stored whose caller does not say.
    """

    def __init__(self, files: Files, queues: Queues, webhooks: Webhooks, clock: Clock, *, stores: bool) -> None:
        self._files, self._queues, self._webhooks, self._clock, self._stores = files, queues, webhooks, clock, stores
        self.broker = ResponseBroker(files.broker.connection, ResponseNames(files.broker.names.base))
        self._sweeping = Repeated(self.sweep, SWEEP_S, "responses_not_swept")

    def start(self) -> None:
        """Finish open responses from now on."""
        self._sweeping.start()

    async def close(self) -> None:
        """Stop that."""
        await self._sweeping.close()

    async def read(
        self,
        caller: Caller,
        body: dict[str, Any],
        size: int,
        most_bytes: int,
        hold: Callable[[int], None],
        named_id: str = "",
    ) -> Asked:
        """Read what a call asks, and put the conversation so far in front of its input.

        Args:
            caller: sends it.
            body, size: the OpenAI request, and its bytes.
            most_bytes: of the conversation.
            hold: counts bytes of it before they are loaded.
            named_id: id of the request that its Idempotency-Key names; empty without one.

        Raises:
            InvalidRequest: a field is wrong, or the conversation is too long.
            Conflict: something else was asked under the Idempotency-Key.
            ApiError: there is no such response, or no room for the conversation.
        """
        given = body["input"]
        asked = Asked(
            {name: value for name, value in body.items() if not value or name != "callback_url"},
            size,
            given if isinstance(given, list) else [{"role": "user", "content": given}],
            store=self._stores if body.get("store") is None else read_flag(body, "store"),
            background=read_flag(body, "background"),
            callback_url=body.get("callback_url") or "",
        )
        if asked.background and not asked.store:
            raise InvalidRequest("needs store: true: its answer is read from there", "background")
        if asked.callback_url:
            if not asked.background:
                raise InvalidRequest("is for background: true; without it, the caller waits", "callback_url")
            await self._webhooks.check(asked.callback_url, caller.tenant)
        if asked.background:
            asked.said["background"] = True
        if named_id:
            asked = await self._with_known(caller, replace(asked, digest=await offload(size, _digest, body)), named_id)
        if asked.known is not None:
            return asked  # what it went on from may be gone meanwhile
        asked = await self._with_items(caller, asked, most_bytes, hold)
        previous = body.get("previous_response_id")
        return asked if previous is None else await self._in_chain(caller, asked, previous, most_bytes, hold)

    async def _with_known(self, caller: Caller, asked: Asked, named_id: str) -> Asked:
        """Add the response that an earlier try has stored, if it can be the answer. Raises as `read`."""
        known = await self.find(caller, PREFIX + named_id)
        if known is None:
            return asked
        _check_same(known, asked.digest)
        gone = await (await self._queues.client(known.queue)).broker.known([known.id]) == [None]
        if gone and (asked.body.get("stream") or not (known.background or known.status in CONTINUED)):
            # Its error's status, or its events, are gone with its result: it runs anew, and is stored anew. Until then
            # it stays: this call may still be refused.
            return replace(asked, stale_ms=known.created_ms)
        return replace(asked, known=known, gone=gone)

    async def _with_items(self, caller: Caller, asked: Asked, most_bytes: int, hold: Callable[[int], None]) -> Asked:
        """Put the items that a call's input refers to in the places of the references. Raises as `read`."""
        wanted = [item.get("id") for item in asked.input if _is_reference(item)]
        if not wanted:
            return asked
        ids = [each for each in wanted if _is_item_id(each)]
        known: dict[str, Any] = {}
        held, more = 0, len(ids) == len(wanted)
        for pause_s in ITEMS_PAUSES_S if more else ():
            if pause_s:
                await self._clock.sleep(pause_s)
            records = await self.broker.records(await self.broker.items(caller.owner, list(dict.fromkeys(ids))))
            outputs = [record.output for record in records if record is not None]
            _check_together(together := sum(map(text_bytes, outputs)), most_bytes)
            hold(max(0, together - held))
            held = max(held, together)
            for output in await asyncio.gather(*map(self._load, outputs)):
                known |= _by_id(output)
            if not set(ids) - set(known) or not more:
                break
            more = await self._finish_newest(caller)
        for at, item in enumerate(asked.input):
            if _is_reference(item) and (not isinstance(item.get("id"), str) or item["id"] not in known):
                name = str(item.get("id"))[:300]
                text = f"Item with id '{name}' not found. Items are kept with a response that is stored."
                raise ApiError(404, text, "item_not_found", param=f"input.{at}")
        sizes = {name: text_bytes(_dump(item)) for name, item in known.items()}
        _check_together(added := sum(sizes[name] for name in ids), most_bytes)
        hold(max(0, added - held))
        items = [known[item["id"]] if _is_reference(item) else item for item in asked.input]
        return replace(asked, body={**asked.body, "input": items}, input=items, added=added)

    async def _in_chain(
        self, caller: Caller, asked: Asked, previous: Any, most_bytes: int, hold: Callable[[int], None]
    ) -> Asked:
        """Put the conversation up to a response in front of a call's input. Raises as `read`."""
        if not isinstance(previous, str):
            raise InvalidRequest("must be a string", "previous_response_id", "invalid_type")
        record = await self.find(caller, previous)
        if record is None:
            raise _previous_not_found(previous)
        if record.status not in CONTINUED:
            text = f"names a response that is {record.status}: no other can go on from it"
            raise InvalidRequest(text, "previous_response_id")
        code, turns = await self.broker.chain(record.id, most_bytes)
        if code is ChainCode.GONE:
            raise _previous_not_found(previous)
        if code is ChainCode.TOO_LONG:
            text = f"names a conversation of more than {most_bytes} bytes, or of too many responses"
            raise InvalidRequest(text, "previous_response_id", "context_length_exceeded")
        texts = [text for turn in reversed(turns) for text in (turn.input, turn.output)]
        hold(added := sum(map(text_bytes, texts)))
        parts = await asyncio.gather(*map(self._load, texts))
        return replace(
            asked,
            body={**asked.body, "input": [item for part in (*parts, asked.input) for item in part]},
            added=asked.added + added,
            previous=record.id,
            root=turns[0].root,
            said={**asked.said, "previous_response_id": previous},
        )

    async def open(
        self, record: ResponseRecord, asked: Asked, said: Mapping[str, Any], *, existing: bool
    ) -> ResponseRecord:
        """Store a response whose request was enqueued; where it is stored, return it as it is.

        Args:
            record: the response, still without texts.
            asked: what its call asks.
            said: as in `Enqueued`.
            existing: True if the request was enqueued before.

        Raises:
            ApiError: too many of the tenant's have not ended.
            Conflict: as of `read`; another try was faster.
            StoreUnavailable: a long text cannot be stored.
        """
        known = (await self.broker.records([record.id]))[0] if existing else None
        if known is not None and known.created_ms != asked.stale_ms:
            _check_same(known, record.digest)
            return known
        record = replace(record, said=_dump(said), input=await self._keep(record.id, asked.input, asked.size))
        if record.background:  # others are seen by their callers once they have ended
            shown = {name: asked.body[name] for name in SHOWN if asked.body.get(name) is not None}
            record = replace(record, response=await self._keep(record.id, shown, asked.size))
        created_ms = await self.broker.add(record, SOON_MS if record.background else LOOK_MS, asked.stale_ms)
        if created_ms is None:
            await self._discard((record.input, record.response))
            text = (
                f"{MOST_RESPONSES} responses of this tenant, or all bytes that it may have, have not ended; try again"
            )
            raise ApiError(429, text, "too_many_responses", LIMITED, headers=retry_after(FULL_S), reason="responses")
        return replace(record, created_ms=created_ms)

    async def finish(self, record: ResponseRecord, result: Result | None) -> None:
        """End a stored response with its result; None where Redis lost its request. Only the first call counts."""
        changes, items = {"status": "failed"}, list[str]()
        if result is not None and result.ok:
            response = {**(result.response or {}), **json.loads(record.said)}
            output = response.pop("output", [])
            changes["status"] = "incomplete" if response.get("status") == "incomplete" else "completed"
            size = len(result.fields.get("response", ""))
            changes["response"] = await self._keep(record.id, response, size)
            changes["output"] = await self._keep(record.id, output, size)
            items = list(_by_id(output))
        elif result is not None and result.status is Status.CANCELLED:
            changes["status"] = "cancelled"
        else:
            lost = exception_to_api_error(RequestLost(record.id))
            error = lost if result is None else result_to_api_error(result)
            changes["error"] = _dump({"code": error.code, "message": error.error["message"]})
        if not await self.broker.finish(record, changes, items):
            # It had ended before; or this call ended it, and Redis's answer was lost: then it names what was stored.
            stands = (await self.broker.records([record.id]))[0]
            kept = () if stands is None else (stands.response, stands.output)
            await self._discard(set(changes.values()) - set(kept))
        elif record.callback_url:
            await self._announce(replace(record, status=changes["status"]))

    async def find(self, caller: Caller, response_id: str) -> ResponseRecord | None:
        """One of the caller's responses, finished if its request has ended; None if there is none."""
        request_id = response_id.removeprefix(PREFIX)
        if request_id == response_id or not belongs_to(caller.owner, request_id):
            return None
        record = (await self.broker.records([request_id]))[0]
        return None if record is None else await self._finished(record)

    async def shown(self, record: ResponseRecord, hold: Callable[[int], None]) -> dict[str, Any]:
        """Returns a response as OpenAI shows it; `hold` counts its bytes before they are loaded."""
        hold(text_bytes(record.response) + text_bytes(record.output))
        response, output = await asyncio.gather(self._load(record.response), self._load(record.output))
        usual = {
            "id": f"{PREFIX}{record.id}",
            "object": "response",
            "created_at": record.created_ms // 1000,
            "incomplete_details": None,
            "model": "",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }
        told = {"status": await self._status(record), "error": json.loads(record.error or "null"), "output": output}
        return {**usual, **response, **json.loads(record.said), **told, "store": True}

    async def input_of(self, record: ResponseRecord, hold: Callable[[int], None]) -> list[Any]:
        """The input items that the caller sent with a response; `hold` as of `shown`."""
        hold(text_bytes(record.input))
        items: list[Any] = await self._load(record.input)
        return items

    async def cancel(self, record: ResponseRecord) -> ResponseRecord:
        """Cancel the request of a response that has not ended, and return the response."""
        with contextlib.suppress(UnknownRequest, ResultTimeout):  # it is lost; or no worker confirms it now
            await (await self._queues.client(record.queue)).cancel(record.id)
        return await self._finished(record)

    async def _load(self, text: str) -> Any:
        """Returns the value of one of a record's texts.

        Raises:
            ApiError: its content was deleted from the store.
            StoreUnavailable: the store failed.
        """
        part = stored_part(text)
        if part is None:
            return json.loads(text)
        try:
            data = b"".join([block async for block in self._files.read([part])])
        except ContentGone:
            raise ApiError(404, "the content of the response is not in the store any more", "content_gone") from None
        return await offload(len(data), json.loads, data)

    async def _keep(self, request_id: str, value: Any, size: int) -> str:
        """Returns a text for a record, after storing it if it is long; `size` is about its bytes. Raises as `open`."""
        text = await offload(size, _dump, value)
        data = text.encode(errors="backslashreplace")  # half of a pair of surrogates, as JSON escapes it
        if len(data) <= MOST_INLINE_BYTES:
            return data.decode()
        name = self._files.store.new_name(f"{PREFIX}{request_id}")
        await self._files.broker.hold([name], KEPT_MS)  # `Files.sweep` deletes it after the record
        await self._files.store.put(name, data)
        return "@" + Part(name, len(data)).encoded()

    async def _discard(self, texts: Iterable[str]) -> None:
        """Delete what is in the store of files of these texts. Raises StoreUnavailable."""
        await self._files.discard([part.name for part in map(stored_part, texts) if part is not None])

    async def _status(self, record: ResponseRecord) -> str:
        """The status as OpenAI tells it: what nobody waits for is `queued` until it runs for the first time."""
        if record.ended or not record.background or record.begun:
            return record.status
        state = (await (await self._queues.client(record.queue)).status(record.id)).state
        if state == RUNNING:  # it may wait again, for its next attempt
            await self.broker.begin(record.id)
        return QUEUED if state == QUEUED else record.status

    async def _announce(self, record: ResponseRecord) -> None:
        """Announce the end of a response, and close it. After a crash, or an error, the next look repeats it."""
        data = {"id": f"{PREFIX}{record.id}", "object": "response", "status": record.status}
        try:
            await self._webhooks.announce(
                record.callback_url,
                f"response.{record.status}",
                data,
                event_id=f"{PREFIX}{record.id}.ended",
                tenant=record.tenant or None,
            )
        except InvalidRequest as error:  # no gateway may send to it any more
            log.warning("callback_refused", request_id=record.id, error=str(error))
        except WebhooksFull as error:
            log.warning("response_not_announced", request_id=record.id, error=str(error))
            return
        await self.broker.close_response(record.id)

    async def _finished(self, record: ResponseRecord) -> ResponseRecord:
        """Finish an open response if its request has ended, and return it."""
        if record.ended:
            return record
        queue = (await self._queues.client(record.queue)).broker
        known, result = await queue.known([record.id]), await queue.result(record.id)
        if result is None and (known != [None] or await self.broker.now_ms() - record.created_ms < UNKNOWN_MS):
            return record
        await self.finish(record, result)
        return (await self.broker.records([record.id]))[0] or record

    async def _finish_newest(self, caller: Caller) -> bool:
        """Finish the caller's newest responses whose requests have ended. False if none was open."""
        ids = await self.broker.ids_of(caller.tenant or "", caller.owner, newest=NEWEST)
        still = [record for record in await self.broker.records(ids) if record is not None and not record.ended]
        await asyncio.gather(*map(self._finished, still))
        return bool(still)

    async def sweep(self) -> bool:
        """Finish open responses whose requests have ended. Returns true if more may be due for a look."""
        ids = await self.broker.due(SWEPT_AT_ONCE, LOOK_MS)
        for each, record in zip(ids, await self.broker.records(ids), strict=True):
            try:
                if record is None:
                    await self.broker.close_response(each)
                elif record.ended:
                    await self._announce(record)
                elif not (await self._finished(record)).ended and record.background:
                    # Soon at first; then less and less often.
                    age_ms = await self.broker.now_ms() - record.created_ms
                    await self.broker.look_in(each, min(LOOK_MS, max(SOON_MS, age_ms // 4)))
            except StreamfleetError as error:
                log.warning("response_not_finished", request_id=each, error=str(error))
            except Exception:  # one record that was damaged, or an answer of an odd form, holds up no other
                log.exception("response_broke", request_id=each)
        return len(ids) == SWEPT_AT_ONCE


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _digest(body: Mapping[str, Any]) -> str:
    """Digest of what a call asks, apart from how and how soon it is answered."""
    asked = {name: value for name, value in body.items() if name not in ("service_tier", "stream")}
    return hashed(comparable(RESPONSES, canonical(asked)))


def _check_same(known: ResponseRecord, digest: str) -> None:
    """Raise Conflict if a stored response is the answer to something else."""
    if known.digest not in ("", digest):
        raise conflict(known.id)


def _check_together(size: int, most_bytes: int) -> None:
    """Raise InvalidRequest if items are too long together, each as often as a reference names it."""
    if size > most_bytes:
        text = f"refers to items of more than {most_bytes} bytes together"
        raise InvalidRequest(text, "input", "context_length_exceeded")


def _is_reference(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference"


def _by_id(output: object) -> dict[str, Any]:
    """The items of an output by their ids."""
    found = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    return {item["id"]: item for item in found if _is_item_id(item.get("id"))}


def _is_item_id(given: object) -> bool:
    return isinstance(given, str) and _ITEM_ID.fullmatch(given) is not None


def _previous_not_found(response_id: str) -> ApiError:
    text = f"Previous response with id '{response_id[:300]}' not found."
    return ApiError(404, text, "previous_response_not_found", param="previous_response_id")
