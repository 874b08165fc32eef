"""Token budget of API keys: tokens are reserved before a request is enqueued, and settled once, by what it used.

A reservation outlives its HTTP request: a caller that leaves pays for what was generated until then. The gateway that
answers a request settles its reservation at once. All other reservations are settled by any gateway, from the results
in their queues. Keys without a limit of tokens have no reservations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from streamfleet.common.errors import StreamfleetError
from streamfleet.common.numbers import BYTES_PER_TOKEN, USUAL_OUTPUT, output_limit, sequences, whole
from streamfleet.common.protocol import MESSAGES, RERANK, SCORE, Status
from streamfleet.common.results import Result, tokens_used
from streamfleet.gateway.authentication import Caller, over_token_limit
from streamfleet.gateway.background import Repeated
from streamfleet.gateway.broker.api_keys import Due, GatewayBroker, Held, ReserveCode
from streamfleet.gateway.queues import Queues

log = structlog.get_logger(__name__)
SWEEP_S = 1.0
CHECK_MS = 30_000
"""Time between two checks of an open reservation; shorter if results live for less than twice as long."""
SOON_MS = 500
UNKNOWN_MS = 30_000
"""After this time since it was sent, a request unknown to its queue is counted as lost."""
SWEPT_AT_ONCE = 100
UNTOLD_CONTEXT = 8_192
"""Tokens of a sequence at most, where the workers of a queue do not say it."""
_PAIRS = {
    RERANK: (("query",), ("documents",)),
    SCORE: (("text_1", "queries", "data_1"), ("text_2", "documents", "data_2")),
}
"""Fields whose texts the engine reads in pairs: a single one of the first is read again with each of the second."""
Body = tuple[Mapping[str, Any], int]
"""A body, and its size in bytes."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Tokens to reserve.

    Attributes:
        most: all that the engine may use.
        least: what has to be left for it. Less than `most` for a message, or a body that limits no output: it takes all
            that is left, so that it runs, but no other one beside it; what it uses beyond that is a debt.
        prompt: tokens of the prompt.
        guess: what a run counts as that nobody counted. May be less than `most` where `least` is.
    """

    most: int
    least: int
    prompt: int
    guess: int


def expected_tokens(endpoint: str, body: Mapping[str, Any], body_bytes: int, context: int | None = None) -> Demand:
    """Tokens to reserve: the prompt, estimated at four bytes a token, and all output that the engine may generate.

    Args:
        endpoint, body, body_bytes: of the request.
        context: tokens of a sequence at most; None if unknown.
    """
    read = body_bytes + _read_again(endpoint, body)
    prompt = max(read // BYTES_PER_TOKEN + 1, _listed(body.get("prompt")), _listed(body.get("input")))
    choices = max(whole(body.get("n")) or 1, whole(body.get("best_of")) or 1)
    several = sequences({"n": choices, "prompt": body.get("prompt")})
    limit = output_limit(body, endpoint)
    if limit is not None:
        most = prompt + several * (limit if context is None else min(limit, context))
        if endpoint == MESSAGES:  # its limit is required, so that clients ask for more than any model writes
            return Demand(most, prompt + 1, prompt, min(most, prompt + USUAL_OUTPUT))
        return Demand(most, most, prompt, most)
    usual = context or UNTOLD_CONTEXT
    guess = prompt + several * min(USUAL_OUTPUT, usual)
    return Demand(prompt + several * usual, prompt + 1 + (several - 1) * usual, prompt, guess)


def _least_of(demands: Sequence[Demand]) -> int:
    """Tokens that have to be left for several bodies: only one of them may take all that is left."""
    return sum(each.most for each in demands) - max((each.most - each.least for each in demands), default=0)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Tokens reserved for a request.

    Attributes:
        held: the requests that they are for.
        owner: id of the API key that pays.
        serial: distinguishes it from later ones of the same name; empty if another try of the request made it.
        tokens: how many.
    """

    held: Held
    owner: str
    serial: str
    tokens: int


def used_tokens(result: Result, reserved: Reservation | Due) -> int | None:
    """Tokens that a request used; None while a cancelled one is still in its queue or engine.

    A run that nobody counted is charged what its reservation guesses, so that none is free, or what was seen of its
    output if that is more; one that failed before its first token is charged its prompt.
    """
    used = tokens_used(result.usage or {}, "total_tokens")
    if used:
        return used
    if result.status is Status.CANCELLED and "entry" not in result.fields:
        return None
    if result.status is not Status.SUCCEEDED and result.timings.waited_ms is None:
        return 0
    held, seen = reserved.held, _seen(result)
    prompt, guess, most = (each // len(held.ids) for each in (held.prompt, held.guess, reserved.tokens))
    if result.status is Status.FAILED and not seen and result.timings.first_token_ms is None:
        return 0 if result.http_status < 500 else prompt
    return max(guess, min(most, prompt + seen))


def _seen(result: Result) -> int:
    """Tokens that were seen of a run's output: its chunks, or four bytes each of its answer."""
    return max(whole(result.fields.get("streamed")) or 0, len(result.fields.get("response", "")) // BYTES_PER_TOKEN)


class TokenBudget:
    """Reservations of all keys.

    Args:
        broker: stores them; None where keys are off.
        queues: hold the results.
        result_ttl_ms: how long results live.
        context: the most tokens of a sequence, by queue; None if unknown.
    """

    def __init__(
        self,
        broker: GatewayBroker | None,
        queues: Queues,
        result_ttl_ms: int,
        context: Callable[[str], Awaitable[int | None]],
    ) -> None:
        self._broker, self._queues, self._context = broker, queues, context
        self._result_ttl_ms = result_ttl_ms
        self._check_ms = max(1, min(CHECK_MS, result_ttl_ms // 2))
        self._sweeping = Repeated(self.sweep, SWEEP_S, "reservations_not_swept")

    def start(self) -> None:
        """Check all open reservations from now on."""
        if self._broker is not None:
            self._sweeping.start()

    async def close(self) -> None:
        """Stop checking them."""
        await self._sweeping.close()

    async def reserve(self, caller: Caller, held: Held, endpoint: str, bodies: Sequence[Body]) -> Reservation | None:
        """Reserve tokens before requests are enqueued; None for a caller without a limit.

        Args:
            caller: pays for them; gets to know what is left to it.
            held: purpose of the reservation.
            endpoint, bodies: of the requests.

        Raises:
            ApiError: not enough tokens are left.
        """
        limit = caller.tokens.limit
        if self._broker is None or not limit:
            return None
        context = await self._context(held.queue)
        demands = [expected_tokens(endpoint, body, size, context) for body, size in bodies]
        most, least = sum(each.most for each in demands), _least_of(demands)
        if least > limit:
            raise over_token_limit(caller, least)
        held = replace(held, prompt=sum(each.prompt for each in demands), guess=sum(each.guess for each in demands))
        pay = partial(self._broker.reserve, caller.owner, limit, most, held, self._check_ms, least=least)
        reserved = await pay()
        if reserved.code is ReserveCode.SETTLED and await self._is_forgotten(held):
            reserved = await pay(replaces=reserved.serial)
        caller.tokens = reserved.tokens
        if reserved.code is ReserveCode.TOO_FEW:
            raise over_token_limit(caller, least, reserved.wait_ms)
        return Reservation(held, caller.owner, reserved.serial, reserved.taken)

    def reserved_before(self, caller: Caller, held: Held) -> Reservation | None:
        """The reservation that the first try of a request made; None for a caller without a limit."""
        return Reservation(held, caller.owner, "", 0) if self._broker is not None and caller.tokens.limit else None

    async def release(self, reservation: Reservation) -> None:
        """Undo `reserve` for a request that was refused."""
        await self._settle(reservation, None)

    async def settle(self, reservation: Reservation, used: int | None) -> None:
        """Charge what was used; if that is None, or another try reserved it, have a gateway check soon."""
        if used is None or not reservation.serial:
            await self.check_soon(reservation)
        else:
            await self._settle(reservation, used)

    async def check_soon(self, reservation: Reservation) -> None:
        """Have a gateway soon find out what the request used."""
        if self._broker is not None:
            await self._broker.look_in(reservation.held.name, 0)

    async def sweep(self) -> bool:
        """Settle reservations that are due and whose use is known. Returns true if more may be due."""
        if self._broker is None:
            return False
        due = await self._broker.due(SWEPT_AT_ONCE, self._check_ms)
        for each in due:
            try:
                await self._check(self._broker, each)
            except StreamfleetError as error:
                log.warning("reservation_not_settled", reservation=each.held.name, error=str(error))
        return len(due) == SWEPT_AT_ONCE

    async def _is_forgotten(self, held: Held) -> bool:
        """True if the queue knows nothing of a named request any more, so that sending it again runs it again."""
        return await (await self._queues.client(held.queue)).broker.known(held.ids) == [None]

    async def _settle(self, what: Reservation | Due, used: int | None) -> None:
        if self._broker is not None:
            remember_ms = self._result_ttl_ms + 2 * self._check_ms
            await self._broker.settle(what.owner, what.held, what.serial, used, remember_ms)

    async def _check(self, broker: GatewayBroker, due: Due) -> None:
        used = await self._find_use(due)
        if used is not None:
            await self._settle(due, used)
        else:
            # Soon at first, because a cancelled one leaves its engine within moments; then less and less often.
            await broker.look_in(due.held.name, min(self._check_ms, max(SOON_MS, due.age_ms // 4)))

    async def _find_use(self, due: Due) -> int | None:
        """Tokens used by all requests of a reservation; None while one of them may still use some."""
        ids = due.held.ids
        queue = (await self._queues.client(due.held.queue)).broker
        known = await queue.known(ids)  # first: a request that ends in between has a result
        results = await queue.results(ids)
        gone = [entry is None and due.age_ms >= UNKNOWN_MS for entry in known]
        return sum_if_known(
            used_tokens(result, due) if result is not None else 0 if lost else None
            for lost, result in zip(gone, results, strict=True)
        )


def sum_if_known(used: Iterable[int | None]) -> int | None:
    """Sum; None if one of them is None."""
    found: Sequence[int | None] = list(used)
    return None if None in found else sum(each or 0 for each in found)


def _read_again(endpoint: str, body: Mapping[str, Any]) -> int:
    """Bytes of a query that the engine reads again with each document but the first."""
    if endpoint not in _PAIRS:
        return 0
    query, documents = (next((body[name] for name in names if name in body), None) for names in _PAIRS[endpoint])
    if isinstance(query, list) and len(query) == 1:
        query = query[0]
    several = isinstance(query, str) and isinstance(documents, list)
    return len(str(query).encode()) * max(0, len(documents or "") - 1) if several else 0


def _listed(prompts: object) -> int:
    """Tokens of prompts that are given as tokens: one may take two bytes of a body."""
    if not isinstance(prompts, list) or not prompts or isinstance(prompts[0], str | dict):
        return 0
    return sum(len(each) if isinstance(each, list) else 1 for each in prompts)
