"""Judges the outcome of every accepted request, seen from outside when all is quiet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from streamfleet.common.replies import streams
from streamfleet.common.results import Result
from tests.broker import Broker
from tests.ha.traffic import Log
from tests.waiting import eventually


@dataclass(frozen=True)
class Verdict:
    """Figures of a history.

    Attributes:
        accepted: requests whose enqueueing was acknowledged.
        with_result: of those, how many have a result now.
        lost: no result now, and their users never got one.
        told: of those lost, how many whose users were told so.
        mistold: have a result now, though their users were told that they were lost.
        forgotten: no result now, but their users got it before.
        run_again: their users got a result, and now there is another.
        lapsed: their users got a result of a later attempt than the first.
        notified_twice: ids that the users' client was told of more than once.
        books: what the audit finds wrong.
    """

    accepted: int
    with_result: int
    lost: int
    told: int
    mistold: int
    forgotten: int
    run_again: int
    lapsed: int
    notified_twice: int
    books: list[str]

    def line(self) -> str:
        return (
            f"accepted={self.accepted} with_result={self.with_result} lost={self.lost} told={self.told} "
            f"mistold={self.mistold} forgotten={self.forgotten} "
            f"run_again={self.run_again} lapsed={self.lapsed} notified_twice={self.notified_twice} "
            f"books={'; '.join(self.books) or 'balance'}"
        )


async def judge(log: Log, broker: Broker, reply_name: str, within_s: float = 30.0) -> Verdict:
    """Wait until nothing is outstanding, then compare.

    Raises:
        AssertionError: something stays outstanding: it is neither lost nor done.
    """

    async def quiet() -> bool:
        return (await broker.audit()).outstanding == 0

    await eventually(quiet, within_s, "nothing is outstanding")
    ids = list(log.accepted)
    now = {
        result.id: result
        for first in range(0, len(ids), 500)
        for result in await broker.results(ids[first : first + 500])
        if result is not None
    }
    gone = set(ids) - set(now)
    again = [name for name, got in log.answered.items() if name in now and _run(now[name]) != _run(got)]
    return Verdict(
        accepted=len(ids),
        with_result=len(now),
        lost=len(gone - set(log.answered)),
        told=len((gone - set(log.answered)) & set(log.told)),
        mistold=len(set(log.told) & set(now)),
        forgotten=len(gone & set(log.answered)),
        run_again=len(again),
        lapsed=sum(got.attempt > 1 for got in log.answered.values()),
        notified_twice=await _told_twice(broker, reply_name),
        books=(await broker.audit()).problems(),
    )


def _run(result: Result) -> tuple[str | None, str | None]:
    return result.fields.get("worker"), result.fields.get("finished_ms")


async def _told_twice(broker: Broker, reply_name: str) -> int:
    words = ("XREAD", "COUNT", 100_000, "STREAMS", broker.keys.reply(reply_name), "0-0")
    told = Counter(
        fields[b"id"] for _, found in streams(await broker.connection.command(*words)) for _, fields in found
    )
    return sum(1 for count in told.values() if count > 1)
