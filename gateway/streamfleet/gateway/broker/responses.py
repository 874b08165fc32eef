"""Stored responses in Redis: their keys, their records, and one typed method per operation.

A record has three texts, each JSON: the input items that the caller sent, the response object without its output, and
the output items. A long text is in the store of files, and the record has its name. A record belongs to the API key
with which its request's id begins; the responses of a tenant are bounded together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from streamfleet.common.replies import texts
from streamfleet.gateway.batch_records import BatchNames, Part, read_part
from streamfleet.gateway.broker.base import SharedKeys

IN_PROGRESS = "in_progress"
"""Status of a record that has not ended; its request may still be in its queue."""
PREFIX = "resp_"
"""Beginning of a response's id; its request's id follows."""
KEPT_MS = 30 * 86_400_000
MOST_RESPONSES = 10_000
_ABOUT = ("tenant", "queue", "previous", "root", "callback_url", "digest")


class ResponseNames(BatchNames):
    """Redis keys of stored responses, beside those of files.

    Args:
        base: prefix of all keys of the gateway (`GatewayNames.base`).
    """

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self.open_responses = f"{base}open_responses"
        """Sorted set: responses that have not ended, or whose end is not announced, by the time of the next look at
        them, epoch ms."""

    def response(self, request_id: str) -> str:
        """Hash: one response, by the id of its request; expires after 30 days."""
        return f"{self.base}response:{request_id}"

    def item(self, owner: str, item_id: str) -> str:
        """String: the response of an API key that has this item in its output; expires as the response does."""
        return f"{self.base}response:{owner}/{item_id}"

    def responses(self, tenant: str) -> str:
        """Sorted set: a tenant's responses, ``<id> <bytes>``, by their creation, epoch ms."""
        return f"{self.base}responses:{tenant}"


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One stored response.

    Attributes:
        id: of its request.
        tenant: the owner's tenant; empty where keys are off.
        queue: the queue of its request.
        previous, root: the response before it in its chain, and the first one; empty, and itself, for the first.
        background: True if the caller does not wait for it.
        callback_url: URL that is called at its end; empty for none.
        begun: True once somebody has seen it run.
        digest: of what its caller asked under an Idempotency-Key; empty without one.
        status: OpenAI's status; IN_PROGRESS until it has ended.
        said: fields of the response object that the gateway says in place of the engine, as JSON.
        error: OpenAI's error object, as JSON; empty for none.
        input, response, output: its three texts.
        created_ms: epoch ms.
    """

    id: str
    tenant: str
    queue: str
    previous: str = ""
    root: str = ""
    background: bool = False
    callback_url: str = ""
    begun: bool = False
    digest: str = ""
    status: str = IN_PROGRESS
    said: str = "{}"
    error: str = ""
    input: str = "[]"
    response: str = "{}"
    output: str = "[]"
    created_ms: int = 0

    @property
    def ended(self) -> bool:
        return self.status != IN_PROGRESS

    def fields(self) -> dict[str, str]:
        """The fields as the record's hash holds them; the script adds time and size."""
        texts = {name: getattr(self, name) for name in (*_ABOUT, "status", "said", "input", "response")}
        return {**texts, "background": "1" if self.background else "", "begun": "1" if self.begun else "0"}


@dataclass(frozen=True, slots=True)
class Turn:
    """What a chain needs of one of its responses; attributes as in `ResponseRecord`."""

    status: str
    root: str
    input: str
    output: str


class ChainCode(IntEnum):
    """Outcome of reading a chain; the return codes of gateway_response_chain.lua."""

    GONE = 0
    READ = 1
    TOO_LONG = 2


def stored_part(text: str) -> Part | None:
    """The content of a text that is in the store of files; None for a text that the record holds."""
    return read_part(text[1:].encode()) if text.startswith("@") else None


def text_bytes(text: str) -> int:
    """Size of a text, wherever it is."""
    part = stored_part(text)
    return len(text.encode()) if part is None else part.bytes


class ResponseBroker(SharedKeys[ResponseNames]):
    """One method for each operation, each one script or one command.

    Attributes:
        most, most_bytes: most responses of a tenant, and bytes of them; the oldest that have ended make room.
        most_turns: most responses of a chain.
    """

    most = MOST_RESPONSES
    most_bytes = 268_435_456
    most_turns = 1_000

    async def add(self, record: ResponseRecord, look_ms: int, stale_ms: int = 0) -> int | None:
        """Store a response. Returns when it was stored, epoch ms; None if too many of the tenant have not ended.

        Args:
            record: the response; where one of this id is stored, it stays as it is.
            look_ms: time until a gateway looks whether it has ended.
            stale_ms: `created_ms` of the one that it replaces all the same; 0 for none.
        """
        size = sum(map(text_bytes, (record.input, record.response)))
        flat = [word for pair in record.fields().items() for word in pair]
        args = [record.id, size, self._clock(), KEPT_MS, self.most, self.most_bytes, look_ms, stale_ms, *flat]
        created = b"again"
        while created == b"again":  # Redis serves others between the calls: each deletes 100 at most
            created = await self.connection.script("gateway_response_add", self._keys(record.tenant, record.id), args)
        return int(created) if created else None

    async def finish(self, record: ResponseRecord, changes: Mapping[str, str], items: Sequence[str] = ()) -> bool:
        """End a response. With a callback URL, it stays open until `close`. False if it had ended before, or is gone.

        Args:
            record: the response before that.
            changes: new fields.
            items: ids of the items of its output.
        """
        kept = (changes.get(name, getattr(record, name)) for name in ("input", "response", "output"))
        flat = [word for pair in changes.items() for word in pair]
        announced = "1" if record.callback_url else ""
        args = [record.id, sum(map(text_bytes, kept)), KEPT_MS, self.most, self.most_bytes, announced]
        args += [" ".join(items), *flat]
        return bool(await self.connection.script("gateway_response_finish", self._keys(record.tenant, record.id), args))

    async def delete(self, tenant: str, request_id: str) -> bool:
        """Delete a response. False if it is not there."""
        return bool(
            await self.connection.script("gateway_response_delete", self._keys(tenant, request_id), [request_id])
        )

    async def records(self, request_ids: Sequence[str]) -> list[ResponseRecord | None]:
        """Several responses, in one round trip."""
        if not request_ids:
            return []
        replies = await self.connection.pipeline([("HGETALL", self.names.response(each)) for each in request_ids])
        return [_read(each, texts(reply)) for each, reply in zip(request_ids, replies, strict=True)]

    async def chain(self, request_id: str, most_bytes: int) -> tuple[ChainCode, list[Turn]]:
        """A response and all before it in its chain, the last one first."""
        args = [request_id, self.most_turns, most_bytes]
        code, *flat = await self.connection.script("gateway_response_chain", [self.names.response(request_id)], args)
        words = [word.decode(errors="replace") for word in flat]
        return ChainCode(code), [Turn(*words[at : at + 4]) for at in range(0, len(words), 4)]

    async def items(self, owner: str, item_ids: Sequence[str]) -> list[str]:
        """Ids of the responses of an API key that have these items in their outputs; without those that none has."""
        found = await self.connection.command("MGET", *(self.names.item(owner, each) for each in item_ids))
        return list(dict.fromkeys(each.decode(errors="replace") for each in found if each is not None))

    async def due(self, most: int, again_ms: int) -> list[str]:
        """Responses that are due for a look, `most` at most; no other gateway gets them within `again_ms`."""
        args = [most, again_ms, self._clock()]
        found = await self.connection.script("gateway_due", [self.names.open_responses], args)
        return [name.decode(errors="replace") for name in found]

    async def look_in(self, request_id: str, ms: int) -> None:
        """Look at an open response after `ms`."""
        words = ("XX", await self.now_ms() + ms, request_id)
        await self.connection.command("ZADD", self.names.open_responses, *words)

    async def begin(self, request_id: str) -> None:
        """Record that somebody has seen a response run, if it is there."""
        await self.connection.script("gateway_change", [self.names.response(request_id)], ["begun", "0", "1"])

    async def close_response(self, request_id: str) -> None:
        """Take a response off the open ones."""
        await self.connection.command("ZREM", self.names.open_responses, request_id)

    async def ids_of(self, tenant: str, owner: str, newest: int = 0) -> list[str]:
        """Responses of one API key of a tenant; with a number, those among so many that its tenant stored last."""
        found = await self.connection.command("ZRANGE", self.names.responses(tenant), -newest, -1)
        ids = [member.decode(errors="replace").partition(" ")[0] for member in found]
        return [each for each in ids if each.startswith(f"{owner}-")]

    def _keys(self, tenant: str, request_id: str) -> list[str]:
        names = self.names
        own = [names.response(request_id), names.responses(tenant), names.use(tenant)]
        return [*own, names.loose, names.open_responses]


def _read(request_id: str, found: Mapping[str, str]) -> ResponseRecord | None:
    created = found.get("created_ms", "")
    if not created.isdecimal():
        return None
    said = {name: found.get(name, "") for name in _ABOUT}
    kept = {name: found[name] for name in ("status", "said", "error", "input", "response", "output") if name in found}
    background, begun = (found.get(name) == "1" for name in ("background", "begun"))
    return ResponseRecord(request_id, **said, **kept, background=background, begun=begun, created_ms=int(created))
