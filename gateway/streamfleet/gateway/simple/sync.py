"""Calls whose prompts are answered while the caller waits.

`SyncCall` turns prompts into requests, enqueues them through the queue's client, and collects their results in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any

from streamfleet.common.broker.types import EnqueueCode, Submission
from streamfleet.common.errors import (
    InvalidRequest,
    QueueFull,
    RequestLost,
    ResultTimeout,
    StreamfleetError,
    UnknownRequest,
)
from streamfleet.common.results import Result
from streamfleet.gateway.auth_context import AuthContext
from streamfleet.gateway.models import Chosen
from streamfleet.gateway.offload import TimeSlice, offload
from streamfleet.gateway.request_parameters import RequestParameters, body_to_enqueue
from streamfleet.gateway.simple.prompts import PromptParameters, of_error, of_result
from streamfleet.gateway.token_budget import Reservation, sum_if_known, used_tokens
from streamfleet.producer.client import Client
from streamfleet.producer.handle import Handle
from streamfleet.producer.sender import chunked, share_used

FULL = "the lane is full; try this prompt again later"
SHARE_USED = "the tenant has its share of the lane waiting; try this prompt again later"
LOST = "Redis lost this prompt's request in a failover or restart; send it again"
TIMED_OUT = "this prompt was not answered before the deadline"
CANCELS_AT_ONCE = 32


class SyncCall:
    """One call with many prompts.

    Args:
        context: the authenticated caller.
        client: client of the queue.
        parameters: lane and deadline.

    Attributes:
        id: prefix of its requests' ids.
    """

    def __init__(self, context: AuthContext, client: Client, parameters: RequestParameters) -> None:
        self._context, self._client, self._parameters = context, client, parameters
        self.id = f"{context.caller.owner}-sync-{secrets.token_hex(12)}"
        self._numbers: dict[str, int] = {}
        self._ended: dict[int, dict[str, Any]] = {}
        self._handles: list[Handle] = []
        self._results: list[Result] = []
        self._enqueueing = False

    async def prepare(self, prompts: PromptParameters, chosen: Chosen) -> list[Submission]:
        """Returns requests for `enqueue`; an invalid prompt gets its error as result."""
        return await offload(prompts.size_bytes, self._prepare_all, prompts, chosen)

    async def enqueue(self, submissions: Sequence[Submission]) -> None:
        """Enqueue all requests; a refused one gets its error as result.

        Raises:
            QueueFull: the lane had no room for any of them.
            StreamfleetError: the queue cannot be reached; requests enqueued before are cancelled.
        """
        full: list[EnqueueCode] = []
        self._enqueueing = True
        try:
            for chunk in chunked(submissions):
                outcomes = await self._client.submit(chunk)
                for submission, (handle, code) in zip(chunk, outcomes, strict=True):
                    if handle is not None:
                        self._handles.append(handle)
                        continue
                    full += [code] if code.full else []
                    number = self._numbers.pop(submission.id)
                    text = SHARE_USED if code is EnqueueCode.SHARE_USED else FULL
                    self._ended[number] = of_error(number, text, "queue_full")
        except BaseException:
            self.abandon()
            raise
        self._enqueueing = False
        if full and len(full) == len(submissions):
            lane = self._parameters.lane
            if EnqueueCode.SHARE_USED in full:
                raise share_used(lane, self._client.broker.limits.lane_tenant_percent)
            raise QueueFull(f"lane {lane} is full", lane)

    async def results(self, wait_s: float) -> list[dict[str, Any]]:
        """Returns the results of all prompts, in their order."""
        arrivals = self._client.arrivals()
        arrivals.add(self._handles)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while len(arrivals):
                        await self._take(await arrivals.take())
        finally:
            arrivals.close()
        for number in self._numbers.values():
            self._ended[number] = of_error(number, TIMED_OUT, "deadline_exceeded")
        return [self._ended[number] for number in sorted(self._ended)]

    def used(self, reserved: Reservation) -> int | None:
        """Tokens that all requests used; None if one has not ended, or was sent and not acknowledged."""
        if self._enqueueing or self._numbers:
            return None
        return sum_if_known(used_tokens(result, reserved) for result in self._results)

    def abandon(self) -> None:
        """Cancel all requests, unless they should go on when the caller leaves."""
        if self._handles and not self._parameters.continue_on_disconnect:
            self._context.gateway.run_in_background(_cancel(self._handles), "cancel what nobody waits for")

    def _prepare_all(self, prompts: PromptParameters, chosen: Chosen) -> list[Submission]:
        submissions = []
        for number, body in enumerate(prompts.bodies):
            sent = body_to_enqueue(body, chosen.served)
            ask = self._parameters.ask(sent, f"{self.id}-{number}", prompts.endpoint, self._context.caller.tenant)
            try:
                submissions.append(self._client.prepare(ask))
            except InvalidRequest as error:
                self._ended[number] = of_error(number, error.message, error.code, error.param)
            else:
                self._numbers[submissions[-1].id] = number
        return submissions

    async def _take(self, results: Sequence[Result | RequestLost]) -> None:
        time_slice = TimeSlice()
        for result in results:
            await time_slice.yield_if_over()
            number = self._numbers.pop(result.id)
            if isinstance(result, RequestLost):
                self._ended[number] = of_error(number, LOST, "request_lost")
            else:
                self._results.append(result)
                self._ended[number] = of_result(number, result)


async def _cancel(handles: Sequence[Handle]) -> None:
    for first in range(0, len(handles), CANCELS_AT_ONCE):
        some = handles[first : first + CANCELS_AT_ONCE]
        for outcome in await asyncio.gather(*(handle.cancel() for handle in some), return_exceptions=True):
            if isinstance(outcome, StreamfleetError) and not isinstance(outcome, (ResultTimeout, UnknownRequest)):
                raise outcome
