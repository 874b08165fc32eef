"""Choice of the batch that gets a slot of a gateway, or gives one up: no tenant or queue keeps the others waiting."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamfleet.gateway.batches.scheduler import STALLED_S, UNSERVED_S, choose_next, choose_victim, is_stalled
from streamfleet.gateway.broker.batches import Contender

SLOTS = 8


def batch(name: str, tenant: str = "t", *queues: str) -> Contender:
    return Contender(name, tenant, frozenset(queues))


def held_by(tenant: str, queue: str, count: int = SLOTS) -> list[Contender]:
    return [batch(f"{tenant}{queue}{n}", tenant, queue) for n in range(count)]


def test_the_next_slot_is_that_of_the_tenant_with_fewest() -> None:
    waiting = [batch("a9", "a", "q"), batch("b1", "b", "q")]
    assert choose_next(waiting, held_by("a", "q", 3)) == waiting[1]
    assert choose_next(waiting, [*held_by("a", "q", 1), *held_by("b", "q", 2)]) == waiting[0]
    assert choose_next([], held_by("a", "q")) is None


def test_among_equals_the_queue_with_fewest_is_next_then_the_first() -> None:
    waiting = [batch("old", "a"), batch("same", "a", "q"), batch("other", "a", "r")]
    running = held_by("a", "q", 3)
    assert choose_next(waiting, running) == waiting[2]
    assert choose_next(waiting[:2], running) == waiting[0], "nobody knows its queues yet, so it has no advantage"


def test_who_has_every_slot_gives_way_and_loses_the_least() -> None:
    running = held_by("a", "dead")
    assert choose_victim(running, batch("b1", "b")) == running[-1]
    assert choose_victim(running, batch("a9", "a", "dead")) is None
    assert choose_victim(running, batch("a9", "a")) is None
    assert choose_victim(running, batch("a9", "a", "other")) == running[-1], "another queue of the same tenant"


def test_a_queue_gives_way_where_no_tenant_gets_less_than_another_for_it() -> None:
    running = [batch(f"x{n}", f"t{n}", "busy") for n in range(SLOTS)]
    assert choose_victim(running, batch("y", "new", "idle")) == running[-1]
    assert choose_victim(running, batch("y", "new", "busy")) is None
    assert choose_victim(running, batch("y", "t0", "idle")) == running[0], "its own, and nobody else's"


def test_even_shares_stay() -> None:
    running = [*held_by("a", "q", 4), *held_by("b", "q", 4)]
    assert choose_victim(running, batch("b9", "b", "q")) is None
    assert choose_victim(running, batch("c1", "c", "q")) is not None
    assert choose_victim(held_by("a", "q", 1), batch("b1", "b", "q")) is None, "one slot cannot be shared"


def test_who_only_waits_keeps_its_slot_for_longer_where_there_are_workers() -> None:
    assert not is_stalled(UNSERVED_S - 0.1, served=False)
    assert is_stalled(UNSERVED_S, served=False)
    assert not is_stalled(STALLED_S - 0.1, served=True)
    assert is_stalled(STALLED_S, served=True)


NAMES = st.tuples(st.sampled_from("abc"), st.sampled_from(["", "q", "r", "q r"]))


@given(st.lists(NAMES, min_size=1, max_size=30), st.integers(1, SLOTS))
@settings(max_examples=300, deadline=None)
def test_slots_come_to_rest_and_are_shared_evenly(found: list[tuple[str, str]], slots: int) -> None:
    waiting = [batch(str(n), tenant, *queues.split()) for n, (tenant, queues) in enumerate(found)]
    running: list[Contender] = []
    for _ in range(200):
        one = choose_next(waiting, running)
        if one is None:
            break
        if len(running) >= slots:
            leaving = choose_victim(running, one)
            if leaving is None:
                break
            running.remove(leaving)
            waiting.append(leaving)
        waiting.remove(one)
        running.append(one)
    else:
        raise AssertionError("batches take each other's slots for ever")
    has = {tenant: sum(each.tenant == tenant for each in running) for tenant in "abc"}
    for each in waiting:
        assert max(has.values()) - has[each.tenant] <= 1
