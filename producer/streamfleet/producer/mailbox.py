"""Waits for results: one blocking read of one reply stream per client, for any number of requests.

Notifications are the fast path, and bring small results along. Result keys are authoritative: they are checked after a
reconnect, for requests whose notification goes elsewhere, and every few seconds in case a notification was trimmed.

A failover may lose accepted requests, so their records are checked after every reconnect, and once a minute.

An error that retrying cannot solve is raised to all current waiters; the next wait tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import ParamSpec, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from streamfleet.common.broker.producer import READ_AT_ONCE, Notifications, ProducerBroker
from streamfleet.common.clock import Clock, SystemClock
from streamfleet.common.errors import (
    BrokerUnavailable,
    ClientClosed,
    NotPermitted,
    RequestLost,
    ResultTimeout,
    SettingsError,
)
from streamfleet.common.logs import Logger
from streamfleet.common.results import Result, decode_result
from streamfleet.producer.slots import Slot, Slots

log = Logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
BLOCK_MS, AT_ONCE_MS = 5_000, 1
FETCH_AT_ONCE = 250
TRIM_AFTER = 100
NOTHING_DUE_S = 60.0
OVERDUE = 0.0
STEPS_TO_WAITER = 2
"""Event-loop ticks to yield before the next read, so that waiters run first."""


class Mailbox:
    """Results that one client waits for.

    Args:
        broker: the queue.
        name: name of this client's reply stream; used by no other client.
        clock: the time of day.

    Attributes:
        generation: counter of events that a later waiter may have missed: a notification that came before its wait, a
            lost notification, a reconnect. A caller takes it before enqueueing, and passes it when it starts to wait.
            So the mailbox knows what that waiter may have missed, and stores nothing for requests without waiters.
    """

    def __init__(self, broker: ProducerBroker, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self.generation = 0
        self._broker = broker
        self._clock = clock or SystemClock()
        self._slots = Slots()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._started = False
        self._position = "0-0"
        self._replan = asyncio.Event()
        self._sleeps_until = math.inf
        self._lost = False
        self._missed = 0
        self._reconnected = 0
        self._moves = 0
        self._closed = False
        self._may_end = True
        self._may_ask = True
        self._behind = True
        self._untrimmed = 0

    def slot(self, request_id: str, generation: int | None = None, entry: str = "") -> Slot:
        """State of a request, kept for as long as the caller holds the slot.

        Args:
            request_id: its id.
            generation: `generation` from before enqueueing; None if its notification does not come here.
            entry: ``<lane>:<stream id>`` if Redis confirmed the request; if Redis loses it, waiters are told.
        """
        slot = self._slots.get(request_id)
        if entry:
            slot.entry, slot.must_recheck = entry, False
            slot.version += 1
        if slot.entry is None:
            slot.must_recheck = True
        if generation is not None:
            slot.notified = True
            if generation < self._reconnected:
                self._slots.recheck(slot)
            if generation < self._missed:
                self._slots.poll_at(slot, OVERDUE)
        return slot

    def join(self, slot: Slot) -> asyncio.Future[Result]:
        """Start to wait for a request. Returns the future of its result; never cancel it, because others may wait too.

        Raises:
            ClientClosed: the mailbox is closed, or belongs to another process.
        """
        if self._closed:
            raise ClientClosed(f"the client was closed: ask an open one for result({slot.id!r})")
        self.check()
        if slot.future is None or _failed(slot.future):
            slot.future = asyncio.get_running_loop().create_future()
        if not slot.future.done():
            self._slots.join(slot, self._now())
            if slot.due < self._sleeps_until:
                self._replan.set()
            if not self._started:
                self._start()
                self._slots.recheck(slot)
        return slot.future

    def check(self) -> None:
        """Raise ClientClosed as `join` would."""
        self._broker.connection.check()

    def leave(self, slot: Slot) -> None:
        """End a wait that `join` started."""
        self._slots.leave(slot)

    @contextlib.contextmanager
    def awaited(self, slot: Slot) -> Generator[asyncio.Future[Result], None, None]:
        """Join, and leave at the end of `with`: the future of a request's result, to await inside."""
        future = self.join(slot)
        try:
            yield future
        finally:
            self.leave(slot)

    async def wait(self, slot: Slot, timeout: float | None = None) -> Result:
        """Wait for a request's result.

        Raises:
            ResultTimeout: it did not arrive within `timeout` seconds.
            RequestLost: Redis had accepted it, and no longer has it.
            ClientClosed: `close` was called, before or meanwhile.
            SettingsError: Redis refuses the user or password; waiting again tries again.
        """
        with self.awaited(slot) as future:
            await asyncio.wait((future,), timeout=timeout)
        if timeout is not None and not future.done():
            raise late(slot.id, timeout)
        return future.result()

    async def close(self) -> None:
        """Stop waiting and delete the reply stream; the remaining waiters get ClientClosed at once."""
        self._closed = True
        self._fail(ClientClosed("the client was closed while this result was awaited; the request goes on"))
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            await self._broker.delete_replies(self.name)

    def _start(self) -> None:
        self._started = self._behind = True
        self.generation += 1
        self._reconnected = self.generation  # earlier requests may have been lost while the mailbox did not read
        for name, loop in (("read", self._read_forever), ("poll", self._poll_forever)):
            if name not in self._tasks or self._tasks[name].done():
                task = self._tasks[name] = asyncio.get_running_loop().create_task(loop())
                task.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._started = False
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            # Tell the waiters, who would wait for ever. The next wait starts the task again.
            self._lost = True
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        for slot in self._slots.all_waiting():
            if slot.future is not None and not slot.future.done():
                slot.future.set_exception(error)
                slot.future.exception()  # read it, so that asyncio does not warn

    # -- notifications -------------------------------------------------------------------------------------

    async def _read_forever(self) -> None:
        while True:
            self._position, ended = await self._patiently(self._read)
            if self._lost or self._moves != self._broker.connection.moves:
                self._lost, self._behind, self._moves = False, True, self._broker.connection.moves
                self.generation += 1
                self._missed = self._reconnected = self.generation
                self._slots.poll_all(self._now())
                self._replan.set()
            await self._notified(ended)
            self._behind = self._behind and len(ended) == READ_AT_ONCE
            self._untrimmed += len(ended)
            if self._untrimmed >= TRIM_AFTER:
                await self._trim()
            for _ in range(STEPS_TO_WAITER):
                await asyncio.sleep(0)

    async def _read(self) -> tuple[str, Notifications]:
        # After a reconnect, results are checked at once, not after the next notification.
        return await self._broker.read_replies(self.name, self._position, AT_ONCE_MS if self._lost else BLOCK_MS)

    async def _trim(self) -> None:
        self._untrimmed = 0
        try:
            await self._broker.trim_replies(self.name, self._position)
        except Exception as error:  # noqa: BLE001 - a damaged key must not end the reading; the next read finds out
            log.debug("notifications_not_trimmed", error=str(error))

    async def _notified(self, ended: Notifications) -> None:
        wanted: list[Slot] = []
        for request_id, fields in ended:
            slot = self._slots.find(request_id)
            if slot is None:
                self.generation += 1
                self._missed = self.generation
                continue
            slot.ended = True
            if self._slots.waiting(request_id) is None:
                continue
            if fields is None or self._behind:  # an old notification: its request may have been requeued since
                wanted.append(slot)
            else:
                self._deliver(slot, decode_result(request_id, fields))
        await self._fetch(wanted)

    # -- result keys ---------------------------------------------------------------------------------------

    async def _poll_forever(self) -> None:
        while True:
            self._replan.clear()
            due = self._slots.next_due()
            pause = NOTHING_DUE_S if due is None else due - self._now()
            if pause > 0:
                self._sleeps_until = self._now() + pause
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._replan.wait()
                continue
            # Take the nearly due ones as well, to save round trips.
            slots = self._slots.take_due(self._now() + 0.01, FETCH_AT_ONCE)
            await self._fetch(slots)
            await self._give_up(slots)
            for slot in slots:
                again_at_once = slot.must_recheck and slot.plan  # another reconnect came in between
                if slot.open and not again_at_once:
                    self._slots.polled(slot, self._now())

    async def _give_up(self, slots: Sequence[Slot]) -> None:
        """Fail the waits for results that will never come."""
        waited = [slot for slot in slots if slot.open]
        long_waited = self._slots.due_for_recheck(waited, self._now())
        for slot in long_waited:
            self._slots.recheck(slot)
        await self._give_up_lost([slot for slot in waited if slot.must_recheck])
        await self._give_up_vanished([slot for slot in long_waited if slot.open])

    async def _give_up_lost(self, slots: Sequence[Slot]) -> None:
        """Fail requests that Redis accepted and no longer has: a failover loses entries that were not replicated."""
        versions = [slot.version for slot in slots]
        entries = await self._entries(slots)
        for slot, before, entry in zip(slots, versions, entries, strict=True):
            if slot.version != before:
                continue  # enqueued again meanwhile, or a reconnect: the answer is out of date
            if entry is not None:
                slot.entry, slot.must_recheck = entry or slot.entry or "", False
            elif slot.entry is None or self._may_outlive_its_record(slot.entry):
                slot.must_recheck = False  # it may still be enqueued
            elif slot.waiters > 0 and slot.future is not None and slot.open:
                slot.future.set_exception(RequestLost(slot.id))

    async def _entries(self, slots: Sequence[Slot]) -> list[str | None]:
        """As `ProducerBroker.known`; unknown records count as present, and are checked again in a minute."""
        if not slots or not self._may_ask:
            return [slot.entry or "" for slot in slots]
        try:
            return await self._patiently(self._broker.known, [slot.id for slot in slots])
        except NotPermitted:  # custom ACL rules; streamfleet's own allow it
            self._may_ask = False
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - one damaged key must not stop the checks of the others
            if len(slots) > 1:
                return [entry for slot in slots for entry in await self._entries([slot])]
            log.warning("lost_check_failed", error=f"{type(error).__name__}: {error}")
        return [slot.entry or "" for slot in slots]

    def _may_outlive_its_record(self, entry: str) -> bool:
        """True if a request may have waited so long that its record expired before it ended."""
        since_ms = entry.partition(":")[2].partition("-")[0]
        return since_ms.isdigit() and self._clock.now_ms() - int(since_ms) > self._broker.limits.record_ttl_ms / 2

    async def _give_up_vanished(self, slots: Sequence[Slot]) -> None:
        """End requests as dead whose entry was deleted by hand."""
        if not slots or not self._may_end:
            return
        try:
            gone = await self._broker.end_vanished([slot.id for slot in slots], True)
        except NotPermitted:  # a producer's role may not write results; `streamfleet audit --repair` may
            self._may_end = False
            return
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - one damaged key must not stop the checks; tried again later
            log.warning("vanished_check_failed", error=f"{type(error).__name__}: {error}")
            return
        await self._fetch([slot for slot in slots if slot.id in gone])

    async def _fetch(self, slots: Sequence[Slot]) -> None:
        for first in range(0, len(slots), FETCH_AT_ONCE):
            some = slots[first : first + FETCH_AT_ONCE]
            try:
                found = await self._patiently(self._broker.results, [slot.id for slot in some])
            except Exception as error:  # noqa: BLE001 - one unreadable result must not hold up the others
                await self._fetch_each(some, error)
                continue
            for slot, result in zip(some, found, strict=True):
                self._deliver(slot, result)

    async def _fetch_each(self, slots: Sequence[Slot], error: Exception) -> None:
        if len(slots) > 1:
            for slot in slots:
                await self._fetch([slot])
        elif slots[0].future is not None and not slots[0].future.done():
            slots[0].future.set_exception(error)

    def _deliver(self, slot: Slot, result: Result | None) -> None:
        if result is not None and slot.future is not None and not slot.future.done():
            slot.ended = True
            slot.future.set_result(result)

    # -- time and reconnecting -----------------------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _patiently(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Result of `work`, retried while Redis cannot be reached."""
        try:
            return await work(*args, **kwargs)
        except BrokerUnavailable:
            self._say_lost(1)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(BrokerUnavailable),
            wait=wait_random_exponential(multiplier=0.05, max=2.0),
            before_sleep=lambda state: self._say_lost(state.attempt_number),
            reraise=True,
        )
        return await retrying(work, *args, **kwargs)

    def _say_lost(self, tries: int) -> None:
        if not self._lost:
            log.warning("waiting_for_redis", address=self._broker.connection.address, tries=tries)
        self._lost = True


def late(request_id: str, timeout: float) -> ResultTimeout:
    """Error for a result that did not arrive in time."""
    return ResultTimeout(f"request {request_id} has no result after {timeout:g} s; it goes on")


def _failed(future: asyncio.Future[Result]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
