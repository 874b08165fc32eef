"""Steps of those who put work in, and of an operator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.broker.types import EnqueueCode
from streamfleet.common.errors import UnknownRequest
from streamfleet.common.protocol import LANES, digest_of_bytes, hashed
from tests.scripts.harness import submission
from tests.scripts.histories.model import UNDELIVERED, understand
from tests.scripts.histories.state import LANE_LIMIT, FleetState
from tests.scripts.histories.steps import Step

ODD_IDS = ["", "", "", "}:r", "a b", "high:1-1"]
REPLIES = ["me", "you", "", "a b"]
DEADLINES: list[Any] = [None, None, 5_000, 20_000, 20_000, 60_000, -1, "nan", "1e9", "0x10", "-1"]


class Producing(FleetState):
    """XADD by anybody, the client's enqueue, cancel, requeue, and XDEL by hand."""

    async def _add(self, step: Step) -> None:
        lane = LANES[step.x % 4]
        deadline, reply = DEADLINES[step.y % len(DEADLINES)], REPLIES[step.z % 7 % 4]
        request_id = self._some_id(step.y) if step.z % 2 else ODD_IDS[step.z % len(ODD_IDS)]
        if isinstance(deadline, int) and step.z % 3:
            deadline += self.now
        late = "" if deadline is None else str(deadline)
        body = "b" * (2_100 if step.x % 37 == 0 else 10)
        if request_id and (self.one_body or step.y % 5 < 3):
            body = '{"prompt": "d0"}'  # as the client enqueues
        tenant = ["", "", "a", "b", "a", "x\x01"][(step.x + step.y) % 6] if self.shape % 2 else ""
        session = ["", "s1", "s2", "s3", "s1"][(step.x * 7 + step.z) % 5] if self.shape // 2 % 4 == 3 else ""
        self.model.sessions = self.model.sessions or (self.sessions and bool(session))
        given = {"id": request_id, "tenant": tenant, "session": session, "reply": reply}
        given |= {"if_late": ["", "refuse", "x"][step.z % 5 % 3]}
        given |= {"ttl" if step.z % 3 == 0 else "deadline": late, "body": body}
        fields = {name: value for name, value in given.items() if value}
        stream_id = await self.queue.add_flat(lane, "*", *[part for pair in fields.items() for part in pair])
        self.model.arrive(understand(lane, stream_id, fields))

    async def _enqueue(self, step: Step) -> None:
        lane, request_id, digest = (
            LANES[step.x % 4],
            self._some_id(step.y),
            f"d{0 if self.one_body else step.z % 8 // 7}",
        )
        body = json.dumps({"prompt": digest})
        of_bytes = digest_of_bytes({b"body": body.encode()})
        digest = hashed(body) + of_bytes
        item = submission(request_id, lane, "me", body, digest)
        record = self.dump.get(f"request:{request_id}")
        expected = EnqueueCode.ACCEPTED
        if record:
            same = record.partition(" ")[0].endswith(of_bytes)
            expected = EnqueueCode.EXISTING if same else EnqueueCode.CONFLICT
        elif request_id in self.model.results:
            expected = EnqueueCode.ANSWERED
        elif sum(name.startswith(f"{lane}:") for name in self.model.places.keys() - self.model.ghosts) >= LANE_LIMIT:
            expected = EnqueueCode.FULL
        for _ in range(1 + step.z % 2):  # sent again after a lost answer
            (accepted,) = await self.queue.broker.enqueue([item])
            assert accepted.code is expected
            if expected is EnqueueCode.ACCEPTED:
                stream_id = accepted.entry.removeprefix(f"{lane}:")
                fields = {name: value.decode() for name, value in item.fields.items()}
                self.model.arrive(understand(lane, stream_id, fields))
                self.model.records[request_id] = (digest, accepted.entry, "me")
                expected = EnqueueCode.EXISTING

    async def _cancel(self, step: Step) -> None:
        names = [*self.model.places]
        unnamed = names[step.y % len(names)] if names else "nobody"
        request_id = [self._some_id(step.x), "}:r", unnamed, self._some_id(step.y)][step.z % 4]
        before = self.model.results.get(request_id, ("cancelled", None))[0]
        record = self.dump.get(f"request:{request_id}", "  ")
        name = record.split(" ", 2)[1] or request_id
        if record == "  " and request_id not in self.model.results:
            name = self.model.find(request_id)
        ahead_ms = 3_600_000 if step.x % 3 == 0 else None
        for _ in range(1 + step.z % 2):
            if not name and ahead_ms is None:
                with pytest.raises(UnknownRequest):
                    await self.queue.broker.cancel(request_id)
                assert await self.queue.dump() == self.dump, "nothing is blocked"
                continue
            assert await self.queue.broker.cancel(request_id, before_ms=ahead_ms) == (before == "cancelled")
        if not name and ahead_ms is None:
            return
        told = [*self.dump.get("cancels", [])] + [{"id": request_id}] * (request_id not in self.model.results)
        assert (await self.queue.dump()).get("cancels", []) == told
        self.model.cancel(request_id, record.split(" ", 2)[2], name)

    async def _requeue(self, step: Step) -> None:
        for letter_id, fields in await self.queue.broker.dead_letters(1):
            text = {name.decode(): value.decode() for name, value in fields.items()}
            kept = {name: value for name, value in text.items() if not name.startswith("_")}
            if step.x % 2:
                kept.pop("deadline", None)
            flat = [part.encode() for pair in kept.items() for part in pair]
            lane = LANES[step.y % 4]
            newer = self._newer(text["_id"], text["_entry"])
            known = digest_of_bytes({name.encode(): value.encode() for name, value in kept.items()})
            words = {"entry": text["_entry"], "digest": known}
            stream_id, said = await self.queue.broker.requeue(letter_id, text["_id"], lane, flat, **words)
            assert said == newer
            if newer:
                assert stream_id is None
                continue
            assert stream_id is not None
            told = (text["_id"], text["_status"], text["_entry"], text["_attempts"], text.get("_workers", ""))
            self.model.letters[told] -= 1
            self.model.counts["requeued"] += 1
            self.model.forget(text["_id"])
            digest, *_ = self.model.records.get(text["_id"], (known,))
            self.model.records[text["_id"]] = (digest, f"{lane}:{stream_id}", "")
            self.model.arrive(understand(lane, stream_id, kept))

    def _newer(self, request_id: str, entry: str) -> str:
        """Status of what an id stands for, where that is another entry than this."""
        status, counted_for = self.model.results.get(request_id, ("", entry))
        if counted_for != entry:
            return status
        recorded = self.dump.get(f"request:{request_id}", "").split(" ")
        return "outstanding" if len(recorded) > 1 and recorded[1] != entry else ""

    async def _delete(self, step: Step) -> None:
        """By hand; an entry that no worker has seen would be lost to the books, and rightly so."""
        names = [
            name for name, place in self.model.places.items() if place != UNDELIVERED and name not in self.model.ghosts
        ]
        if names:
            name = names[step.x % len(names)]
            lane, stream_id = name.split(":")
            await self.queue.command("XDEL", self.queue.keys.lane(lane), stream_id)
            self.model.ghosts.add(name)
