"""Times at which a client polls for a result by itself, and what it remembers."""

from __future__ import annotations

import gc

import pytest

from streamfleet.producer.slots import Slot, Slots, pause_s


def test_looks_back_off() -> None:
    assert [pause_s(False, polls) for polls in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [pause_s(True, polls) for polls in range(4)] == [5.0, 10.0, 20.0, 30.0]
    assert pause_s(True, 10**6) == 30.0


def test_one_whose_notification_was_read_before_anybody_waited_is_looked_at_at_once() -> None:
    slots = Slots()
    slot = slots.get("r")
    slot.notified = slot.ended = True
    slots.join(slot, 100.0)
    assert slots.take_due(100.0, 10) == [slot]


def test_looks_come_in_order_and_in_bounded_numbers() -> None:
    slots = Slots()
    some = [slots.get(str(number)) for number in range(5)]
    for number, slot in enumerate(some):
        slots.join(slot, 100.0 - number)
    assert slots.take_due(100.0, 2) == [some[4], some[3]]
    assert slots.take_due(100.0, 10) == [some[2], some[1], some[0]]
    assert slots.next_due() is None


def test_nobody_looks_for_one_that_nobody_waits_for() -> None:
    slots = Slots()
    slot = slots.get("r")
    slots.join(slot, 100.0)
    slots.join(slot, 100.0)
    slots.leave(slot)
    assert slots.waiting("r") is slot
    slots.leave(slot)
    assert slots.waiting("r") is None
    assert slots.next_due() is None


def test_many_short_waits_look_as_often_as_a_long_one() -> None:
    slots = Slots()
    slot = slots.get("r")
    slot.notified = True
    for second in range(5):
        slots.join(slot, 100.0 + second)
        assert slots.take_due(100.0 + second, 10) == []
        slots.leave(slot)
        assert slots.next_due() is None
    slots.join(slot, 105.0)
    assert slots.take_due(105.0, 10) == [slot]
    slots.polled(slot, 105.0)
    assert slots.next_due() == 115.0
    slots.leave(slot)
    slots.join(slot, 108.0)
    assert slots.next_due() == 113.0, "a new wait brings the look forward, as a first one"


def test_a_new_wait_for_a_request_of_others_does_not_begin_to_hurry_again() -> None:
    slots = Slots()
    slot = slots.get("r")
    for wait in range(6):
        slots.join(slot, 100.0 + wait)
        assert slots.take_due(100.0 + wait, 10) == [slot]
        slots.polled(slot, 100.0 + wait)
        slots.leave(slot)
    slots.join(slot, 200.0)
    assert slots.take_due(200.0, 10) == [slot]
    slots.polled(slot, 200.0)
    assert slots.next_due() == 201.0


@pytest.mark.parametrize("notified", [True, False])
def test_many_short_waits_leave_one_plan(notified: bool) -> None:
    slots = Slots()
    slot = slots.get("r")
    slot.notified = notified
    for wait in range(1_000):
        slots.join(slot, 100.0 + wait / 1_000)
        slots.leave(slot)
    assert len(slots._polls) == 1
    slots.join(slot, 101.0)
    assert slots.take_due(106.0, 10) == [slot], "once"
    assert slots.next_due() is None


def test_a_slot_whose_look_came_to_nothing_is_planned_by_the_next_that_waits() -> None:
    slots = Slots()
    slot = slots.get("r")
    slots.join(slot, 100.0)
    assert slots.take_due(100.0, 10) == [slot]
    slots.join(slot, 100.0)
    assert slots.take_due(100.0, 10) == [slot]


def test_all_are_looked_at_when_notifications_may_be_lost_whether_or_not_somebody_waits_now() -> None:
    slots = Slots()
    waited, held = slots.get("waited"), slots.get("held")
    waited.notified = held.notified = True
    slots.join(waited, 100.0)
    slots.poll_all(101.0)
    assert held not in [slot for *_, slot in slots._polls], "nobody polls for one that nobody waits for"
    assert slots.take_due(101.0, 10) == [waited]
    assert slots.next_due() is None
    slots.join(held, 102.0)
    assert slots.take_due(102.0, 10) == [held]


def test_forgets_handles_that_were_dropped() -> None:
    slots = Slots()
    held, dropped = slots.get("held"), slots.get("dropped")
    assert slots.get("held") is held
    del dropped
    gc.collect()
    assert slots.find("dropped") is None
    assert isinstance(slots.find("held"), Slot)


def test_what_is_waited_for_in_vain_is_checked_after_a_minute_and_then_every_minute() -> None:
    slots = Slots()
    slot, other = slots.get("r"), slots.get("s")
    slots.join(slot, 100.0)
    slots.join(other, 130.0)
    slots.join(slot, 150.0)
    assert slots.due_for_recheck([slot, other], 159.9) == []
    assert slots.due_for_recheck([slot, other], 160.0) == [slot]
    assert slots.due_for_recheck([slot, other], 160.0) == []
    assert slots.due_for_recheck([slot, other], 220.0) == [slot, other]
