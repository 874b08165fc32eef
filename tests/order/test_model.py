"""An example of each rule of the order: `test_<name>` is that of rules.py's <name>. Times are ms from NOW."""

from __future__ import annotations

from typing import Any

from tests.order.homes import Homes, rank_in_program
from tests.order.lanes import Run, Shares, fills_up_to, gives_way, owed
from tests.order.model import BEFORE_EQUALS, Charge, Entry, Model, Tenant, Use
from tests.order.picks import held_until, rank_of
from tests.order.tenants import cost_of, stays_of

NOW = 1_795_740_000_000
USUAL = 256
"""Tokens that a request is charged here, if nothing else is said."""


class Queue:
    """A model, with names for requests."""

    def __init__(self, **tokens: int) -> None:
        self.model, self.now, self.entries = Model(), NOW, dict[str, Entry]()
        self.lane = self.model.lanes[3]
        self.lane.tokens |= tokens
        self.model.now = NOW
        self.dropped, self.soonest = "", None  # type: str, int | None

    def add(self, *names: str, lane: int = 3, deadline: int | None = None, ago: int = 0, **fields: Any) -> Queue:
        for name in names:
            came, late = self.now - ago, None if deadline is None else self.now + deadline
            e = Entry(lane, (came, len(self.entries)), rank_of(came, late), came, late, **fields)
            self.entries[name] = e
            self.model.became_ready([e])
        return self

    def known(self, *names: str) -> Queue:
        """These tenants have history."""
        for name in names:
            self.model.tenant(name).requests = 1
        return self

    def take(self, worker: int = 1, n: int = 1, after: int = 0, **how: Any) -> str:
        self.now += after
        taken = self.model.take(worker, (1, 2, 3, 4), n, self.now, **how)
        names = {e: name for name, e in self.entries.items()}
        self.dropped, self.soonest = " ".join(names[e] for e in taken.dropped), taken.soonest
        return " ".join(names[e] for e in taken.runs)

    def end(self, name: str, use: Use) -> None:
        self.model.ended(3, self.entries[name].id, use)

    def back(self, name: str, **how: Any) -> None:
        self.model.handed_back(3, self.entries[name].id, **how)


# Lanes


def test_urgent_lane_first() -> None:
    assert Queue().add("low", lane=4).add("critical", lane=1).take() == "critical"


def test_guaranteed_share() -> None:
    queue = Queue().add("low", lane=4).add("critical", lane=1)
    queue.model.shares.credit[3] = 1000
    assert queue.take() == "low"


def test_saves_up_while_it_waits() -> None:
    assert Shares().choose(11, [99, 0, 99, 0], [99] * 4, [99] * 4) == [10, 0, 1, 0]
    shares = Shares(credit=[0, 0, 900, 0])
    shares.choose(1, [99, 0, 0, 0], [99] * 4, [99] * 4)
    assert shares.credit == [0, 0, 0, 0]


def test_unused_pick_is_owed() -> None:
    shares = Shares()
    shares.given_back(4)
    assert shares.choose(1, [9, 0, 0, 9], [9] * 4, [9] * 4) == [0, 0, 0, 1]


def test_rank_is_deadline_or_patience() -> None:
    assert (
        Queue()
        .add("just", deadline=300_000)
        .add("patient")
        .add("late", deadline=301_000)
        .add("soon", deadline=299_000)
        .take(n=4)
        == "soon patient just late"
    )


def test_equal_ranks_in_order_of_arrival() -> None:
    assert Queue().add("second", deadline=9000).add("first", deadline=9000, ago=5).take(n=2) == "first second"


def test_expired_is_not_started() -> None:
    queue = Queue().add("gone", deadline=0).add("other")
    assert (queue.take(), queue.dropped) == ("other", "gone")


def test_out_of_reach_is_not_started() -> None:
    queue = Queue().add("short", deadline=4999).add("long", deadline=5000)
    assert (queue.take(n=2, needs={("none", ""): 5000}), queue.dropped) == ("long", "short")


def test_judged_once_before_its_first_run() -> None:
    queue = Queue().add("a", deadline=4999)
    queue.take()
    queue.back("a", generated=0)
    assert queue.take(needs={("none", ""): 5000}) == "a"


def test_nobody_idle_beside_work() -> None:
    queue = Queue().add("a", home=2)
    assert [queue.model.could_take(worker, (3,), NOW + 300) for worker in (2, 1)] == [0, 700]
    assert queue.take() == ""
    assert queue.soonest == 1000
    assert queue.take(after=1000) == "a"


# Tenants


def test_shared_while_a_tenant_waits() -> None:
    queue = Queue(A=500).known("B").add("a", tenant="A", deadline=10_000).add("b", tenant="B", deadline=20_000)
    assert queue.take() == "b"
    assert Queue().add("later", deadline=20_000).add("sooner", deadline=10_000).take() == "sooner"


def test_least_first() -> None:
    assert Queue(A=500).known("B").add("a", tenant="A").add("b", tenant="B").take() == "b"
    assert Queue().known("A").known("B").add("b", tenant="B").add("a", tenant="A").take() == "a"


def test_weight() -> None:
    queue = Queue()
    queue.model.set_tenant("A", weight=3)
    assert queue.add("a1", "a2", "a3", tenant="A").add("b1", "b2", tenant="B").take(n=5) == "a1 b1 a2 a3 b2"


def test_settled_by_the_weight_of_the_pick() -> None:
    queue = Queue().add("a", tenant="A")
    queue.take()
    queue.model.set_tenant("A", weight=4)
    queue.end("a", Use(reached=False))
    assert queue.lane.tokens["A"] == 0


def test_by_rank_in_its_turn() -> None:
    queue = Queue().add("own", tenant="A", home=1, deadline=8000).add("anybody's", tenant="A", deadline=5000)
    assert queue.take() == "anybody's"


def test_nobodys_are_one_tenant() -> None:
    assert Queue().add("a1", "a2", tenant="A").add("x1", "x2").take(n=4) == "x1 a1 x2 a2"


def test_nobodys_are_charged_where_a_lane_is_shared() -> None:
    queue = Queue().add("x1", "x2")
    queue.take()
    assert "" not in queue.lane.tokens
    queue.add("a", tenant="A").take()
    assert queue.lane.tokens[""] == USUAL


def test_nobodys_enter_at_the_level() -> None:
    queue = Queue().known("A")
    queue.lane.reached = 1000
    assert queue.add("x").add("a", tenant="A").take(n=2) == "a x"
    assert queue.lane.tokens.get("") == 1000 + USUAL


def test_nobodys_get_no_credit() -> None:
    queue = Queue(A=1000).known("").add("a", tenant="A").add("x")
    assert queue.lane.tokens[""] == 1000


def test_unread_costs_the_usual() -> None:
    queue = Queue().add("x1", home=1).add("x2").add("a1", "a2", "a3", "a4", tenant="A")
    queue.model.tenant("").usual = 600
    assert queue.take(n=5) == "x1 a1 a2 a3 x2"
    assert queue.lane.tokens[""] == 2 * USUAL


def test_newcomer_starts_a_request_below() -> None:
    queue = Queue(A=1000).known("B").add("a", tenant="A").add("b", tenant="B")
    assert queue.lane.tokens["B"] == 1000 - USUAL


def test_what_comes_back_brings_no_credit() -> None:
    queue = Queue().known("A").add("a", tenant="A")
    queue.take()
    queue.lane.reached = 1000
    queue.back("a", generated=0)
    assert queue.lane.tokens["A"] == 1000


def test_credit_once_an_hour() -> None:
    queue = Queue(A=1000).known("B", "C", "D").add("a", tenant="A")
    queue.model.tenant("B").credited = NOW - 3_599_999
    queue.model.tenant("C").credited = NOW - 3_600_000
    queue.add("b", tenant="B").add("c", tenant="C").add("d", tenant="D", lane=4)
    assert [queue.lane.tokens[name] for name in "BC"] == [1000 - BEFORE_EQUALS, 1000 - BEFORE_EQUALS - USUAL]
    credited = [NOW - 3_599_999, NOW, 0]  # nobody waits in D's lane, so that it did not start below others
    assert [queue.model.tenant(name).credited for name in "BCD"] == credited


def test_before_those_at_the_level() -> None:
    queue = Queue(A=1000).known("B").add("a", tenant="A")
    queue.model.tenant("B").credited = NOW
    assert queue.add("b", tenant="B").take() == "b"


def test_history_is_a_run_that_ended() -> None:
    queue = Queue().add("a", tenant="A").add("b", tenant="B").add("c", tenant="C")
    queue.take(n=3)
    assert not any(queue.model.tenant(name).has_history for name in "ABC")
    queue.end("a", Use(reached=False))
    queue.back("b", generated=1)
    queue.back("c")
    assert [queue.model.tenant(name).has_history for name in "ABC"] == [True, True, False]


def test_no_credit_without_history() -> None:
    assert Queue(A=1000).add("a", tenant="A").add("b", tenant="B").lane.tokens["B"] == 1000


def test_new_names_one_behind_another() -> None:
    queue = Queue(A=1000, B=1000, own=5000).known("A", "B").add("a", tenant="A").add("b", tenant="B")
    for name in ("n1", "own", "n2"):
        queue.add(name, tenant=name)
    assert [queue.lane.tokens[name] for name in ("n1", "own", "n2")] == [1000, 5000, 1000 + USUAL]
    assert queue.lane.new == 1000 + 1.5 * USUAL


def test_history_of_the_next_in_turn() -> None:
    queue = Queue()
    for number in range(20):
        queue.known(f"t{number}").add(str(number), tenant=f"t{number}")
    assert queue.add("new", tenant="new").lane.new == USUAL / 16


def test_new_names_among_themselves_are_close() -> None:
    queue = Queue(n1=1000).add("1", tenant="n1").add("2", tenant="n2").add("3", tenant="n3")
    assert [queue.lane.tokens[name] for name in ("n1", "n2", "n3")] == [1000, 1000, 1000 + USUAL / 128]
    queue = Queue().add("x").add("1", tenant="n1").add("2", tenant="n2")
    assert queue.lane.tokens["n2"] == USUAL, "requests without a tenant count as one with history"


def test_no_other_credit() -> None:
    queue = Queue(A=1000, B=900).known("B").add("a", tenant="A").add("b", tenant="B")
    assert queue.lane.tokens["B"] == 900


def test_level_of_those_in_turn() -> None:
    assert Queue(A=1000, gone=100).add("a", tenant="A").lane.level == 1000


def test_level_rises_by_turns() -> None:
    queue = Queue(A=500, B=100).add("b", tenant="B", home=2).add("a", tenant="A")
    assert queue.take() == "a"
    assert queue.lane.reached == 100, "B was passed over"
    queue.add("own", tenant="C", home=1).take()
    assert queue.lane.reached == 100, "it was out of turn"


def test_nearly_late_first() -> None:
    assert Queue(A=500).add("b", tenant="B").add("a", tenant="A", deadline=3000).take() == "a"
    assert Queue(A=500).add("b", tenant="B").add("a", tenant="A", deadline=3001).take() == "b"


def test_few_ahead() -> None:
    assert Queue(A=6 * USUAL).add("b", tenant="B").add("a", tenant="A", deadline=3000).take() == "a"
    assert Queue(A=6 * USUAL + 1).add("b", tenant="B").add("a", tenant="A", deadline=3000).take() == "b"


def test_a_flood_has_one_row() -> None:
    queue = Queue().add("f1", "f2", tenant="flood", home=1, deadline=2000).add("s", tenant="small", deadline=2500)
    assert queue.take(n=2) == "f1 s"


def test_keeps_its_turn() -> None:
    queue = Queue().add("a", tenant="A", home=2).add("b", tenant="B")
    assert queue.take() == "b"
    assert queue.lane.in_turn == {"A"}


def test_names_beyond_a_number_are_other() -> None:
    queue = Queue()
    queue.model.tenants |= {f"t{number}": Tenant() for number in range(2000)}
    assert [queue.model.name_of(name) for name in ("t7", "new", "", "n" * 257, "\n")] == [
        "t7",
        "other",
        "",
        "other",
        "other",
    ]


def test_limit_of_a_tenant() -> None:
    queue = Queue()
    queue.model.set_tenant("A", limit=1)
    assert queue.add("a1", "a2", tenant="A").add("b", tenant="B").take(n=3) == "a1 b"
    queue.end("a1", Use())
    assert queue.take() == "a2"


def test_limit_counts_since_there_is_one() -> None:
    queue = Queue().add("a1", "a2", "a3", tenant="A")
    queue.take()
    queue.model.set_tenant("A", limit=1)
    assert queue.take(n=2) == "a2"


def test_after_its_limit_no_credit() -> None:
    queue = Queue(B=1000)
    queue.model.set_tenant("A", limit=1)
    queue.add("a1", tenant="A").take()
    queue.add("b", tenant="B").add("a2", tenant="A")
    queue.end("a1", Use())
    assert queue.lane.tokens["A"] == 1000


def test_limits_hide_nobody() -> None:
    queue = Queue()
    queue.model.set_tenant("A", limit=0)
    queue.add(*(f"a{number}" for number in range(64)), tenant="A", home=1, ago=5).add("x", home=1)
    assert queue.take() == "x"


def test_charged_at_the_pick() -> None:
    queue = Queue().add("a", tenant="A", size=400).add("b", tenant="B", size=400, limit=16)
    queue.take(n=2)
    assert [queue.entries[name].charge.run for name in "ab"] == [100 + 256, 100 + 16]


def test_lengths_before_any_is_known() -> None:
    assert [Tenant().estimate(size, limit) for size, limit in ((400, None), (0, 16), (0, 0))] == [
        (100, 256),
        (0, 16),
        (0, 1),
    ]


def test_lengths_by_class_of_limit() -> None:
    tenant = Tenant(lengths={"13": (1, 10, 0.5, False)})
    assert [tenant.estimate(400, limit) for limit in (100, 120, None)] == [(200, 10), (200, 10), (100, 256)]


def test_lengths_are_learnt() -> None:
    queue = Queue().add("a", "b", tenant="A", size=400)
    queue.take(n=2)
    queue.end("a", Use(prompt=200, output=10, counted=True))
    assert queue.model.tenant("A").lengths == {}
    queue.end("b", Use(prompt=200, output=10, counted=True, succeeded=True))
    assert queue.model.tenant("A").lengths == {"none": (1, 10, 0.5, False)}


def test_limit_that_was_exceeded() -> None:
    tenant = Tenant()
    for output, expected in ((120, 96), (122, 121), (88, 110)):  # 96 and 120 are of one class
        tenant.learn(400, 120, 100, output)
        assert tenant.estimate(400, 96) == (100, expected)


def test_summed_up_at_the_end() -> None:
    queue = Queue().add("a", tenant="A")
    queue.take()
    assert queue.model.tenant("A").charged == 0
    queue.end("a", Use(prompt=10, output=20, counted=True))
    assert queue.model.tenant("A").charged == 30


def test_settled_by_what_was_used() -> None:
    charge = Charge(prompt=9, output=99, kept=5)
    assert [cost_of(charge, Use(10, 20, counted=True, resumed=resumed)) for resumed in (0, 4, 8)] == [30, 26, 25]


def test_nothing_if_it_did_not_reach_the_engine() -> None:
    charge = Charge(prompt=10, output=100)
    assert [cost_of(charge, Use(succeeded=done, reached=False)) for done in (False, True)] == [0, 110]


def test_uncounted_is_charged_by_time() -> None:
    charge = Charge(prompt=10, output=100)
    assert [cost_of(charge, Use(output=7, held=held)) for held in (40, 2, None)] == [50, 17, 110]


def test_failed_attempt_is_charged() -> None:
    assert [stays_of(Charge(prompt=10, output=100), failed=True, held=held) for held in (3, None)] == [13, 110]


def test_generated_stays_charged() -> None:
    queue = Queue().add("a", tenant="A")
    queue.take()
    queue.back("a", generated=40)
    assert queue.lane.tokens["A"] == 40


def test_kept_once() -> None:
    queue = Queue().add("a", tenant="A")
    for _ in range(2):
        queue.take()
        queue.back("a", generated=40)
    queue.take()
    queue.end("a", Use(prompt=0, output=100, counted=True, resumed=80))
    assert (queue.lane.tokens["A"], queue.model.tenant("A").tokens) == (100, 100)


def test_lost_is_free() -> None:
    queue = Queue().add("a", tenant="A")
    queue.take()
    queue.back("a")
    assert (queue.lane.tokens["A"], queue.model.tenant("A").lost) == (0, USUAL)


def test_what_did_not_run_is_free() -> None:
    queue = Queue().add("a", tenant="A", deadline=0)
    queue.take()
    assert queue.lane.tokens["A"] == 0


# Homes


def never(_: int) -> bool:
    return False


def always(_: int) -> bool:
    return True


def test_session_stays_at_its_home() -> None:
    homes = Homes({1: 0, 2: 0})
    home = homes.home_of(NOW, "s", "", never)
    homes.work[home] = 9
    assert homes.home_of(NOW, "s", "", never) == home
    del homes.work[home]
    assert homes.home_of(NOW, "s", "", never) == 3 - home


def test_beginning_counts_when_it_comes_again() -> None:
    homes = Homes({1: 0})
    assert [homes.home_of(NOW, "", "once upon", never) for _ in range(2)] == [0, 1]


def test_beginning_goes_where_it_was_read() -> None:
    homes = Homes({1: 4, 2: 0})
    homes.took(1, "", "once upon")
    assert homes.home_of(NOW, "s", "once upon", never) == 1
    homes.work[1] = 5
    assert homes.home_of(NOW, "t", "once upon", never) == 2


def test_least_loaded_is_home() -> None:
    assert {Homes({1: 5, 2: 1, 3: 5}).home_of(NOW, session, "", never) for session in "abcdefgh"} == {2}


def test_hot_session_has_several_homes() -> None:
    homes = Homes({1: 10, 2: 0})
    homes.took(1, "s", "")
    assert [homes.home_of(NOW, "s", "", always) for _ in range(9)] == [1] * 8 + [2]
    homes.work[2] = 9
    assert homes.home_of(NOW, "s", "", never) == 2


def test_hottest_is_anybodys() -> None:
    homes = Homes({1: 3, 2: 0})
    homes.took(1, "s", "")
    assert [homes.home_of(NOW, "s", "", always) for _ in range(17)] == [1] * 16 + [0]


def test_who_takes_it_is_its_home() -> None:
    homes = Homes({1: 0, 2: 9})
    homes.took(2, "s", "")
    assert homes.home_of(NOW, "s", "", never) == 2


def test_own_and_nobodys_by_rank() -> None:
    queue = (
        Queue()
        .add("own", home=1, deadline=20_000)
        .add("anybody's", deadline=10_000)
        .add("other's", home=2, deadline=9000)
    )
    assert queue.take(n=3) == "anybody's own"


def test_left_to_its_home_for_a_second() -> None:
    queue = Queue().add("a", home=2)
    assert [queue.take(), queue.take(after=999), queue.take(after=1)] == ["", "", "a"]


def test_near_ones_of_another_home_first() -> None:
    for deadline, first in ((3000, "other's"), (3001, "anybody's")):
        queue = Queue().add("other's", home=2, deadline=deadline, ago=1000).add("anybody's", deadline=9000)
        assert queue.take() == first


def test_long_waiting_ones_of_another_home_first() -> None:
    for ago, first in ((10_000, "other's"), (9999, "anybody's")):
        queue = Queue().add("other's", home=2, deadline=20_000, ago=ago).add("anybody's", deadline=30_000)
        assert queue.take() == first


def test_with_room_left_what_waited_for_others() -> None:
    queue = Queue().add("other's", home=2, deadline=20_000, ago=1000).add("anybody's", deadline=30_000)
    assert queue.take(n=2) == "anybody's other's"


def test_own_first() -> None:
    assert Queue(B=500).add("a", tenant="A").add("own", tenant="B", home=1).take() == "own"


def test_own_only_if_nothing_more_urgent() -> None:
    for deadline, first in ((10_000, "urgent"), (10_001, "own")):
        queue = Queue().add("own", tenant="A", home=1, deadline=20_000).add("urgent", tenant="A", deadline=deadline)
        assert queue.take() == first


def test_in_its_turn_after_three_seconds() -> None:
    for ago, order in ((2999, "b other's"), (3000, "other's b")):
        queue = Queue().add("other's", tenant="A", home=2, ago=ago).add("b", tenant="B")
        assert queue.take(n=2) == order


def test_another_homes_count_as_later() -> None:
    for deadline, order in ((9999, "other's anybody's"), (10_001, "anybody's other's")):
        queue = (
            Queue()
            .add("other's", tenant="A", home=2, deadline=deadline, ago=3000)
            .add("anybody's", tenant="A", deadline=20_000)
        )
        assert queue.take(n=2) == order


def test_dead_home_frees() -> None:
    queue = Queue().add("a", home=2)
    queue.model.free_home(2)
    assert queue.take() == "a"


def test_older_program_first() -> None:
    assert rank_in_program(310_000, 10_000, 4000, None, 10_000, given=False) == 304_000


def test_at_most_half_of_the_time() -> None:
    assert rank_in_program(1_300_000, 1_000_000, 0, None, 1_000_000, given=False) == 1_150_000


def test_deadline_is_kept_to() -> None:
    assert rank_in_program(310_000, 10_000, 4000, 310_000, 10_000, given=True) == 310_000


def test_after_half_by_its_deadline() -> None:
    ranks = [rank_in_program(30_000, 20_000, 0, 30_000, now, given=False) for now in (24_999, 25_000)]
    assert ranks == [25_000, 30_000]


# Urgent beside patient


def test_reserve() -> None:
    assert [fills_up_to(4, slots) for slots in (40, 64, 8)] == [32, 52, 7]


def test_normal_leaves_an_eighth() -> None:
    assert [fills_up_to(3, slots) for slots in (40, 64, 8)] == [39, 63, 8]


def test_share_against_the_reserve() -> None:
    for waiting, picks in ((2, [0, 0, 0, 1]), (1, [1, 0, 0, 0])):
        shares = Shares(credit=[0, 0, 0, 1000])
        assert shares.choose(1, [waiting, 0, 0, 9], [1, 1, 0, 0], [1, 1, 0, 1]) == picks


def test_share_is_bounded() -> None:
    assert [owed(4, 40, {1: 8, 4: low}) for low in (30, 31, 32)] == [2, 1, 0]
    assert owed(4, 40, {1: 4, 4: 32}) == 0


def test_who_gives_way() -> None:
    runs = [Run(3), Run(4, interrupted=1), Run(4, slack=99, ran=1), Run(4, ran=9)]
    assert gives_way(runs, 4) == runs[::-1]


def test_least_work_lost() -> None:
    short, long = Run(4, ran=5), Run(4, ran=40, continues=True)
    assert gives_way([short, long], 1) == [long]


def test_interrupted_three_times_stays() -> None:
    assert gives_way([Run(4, interrupted=3), Run(3, interrupted=2)], 1) == [Run(3, interrupted=2)]


def test_what_would_be_late_stays() -> None:
    assert gives_way([Run(4, whole=6, slack=11), Run(3, whole=6, slack=12)], 1) == [Run(3, whole=6, slack=12)]


def test_what_came_by_its_share_stays() -> None:
    assert gives_way([Run(4, by_share=True), Run(3)], 1) == [Run(3)]


def test_none_if_not_enough() -> None:
    assert gives_way([Run(4)], 2) == []


def test_back_at_its_old_rank() -> None:
    queue = Queue().add("a", "b")
    queue.take()
    queue.back("a", generated=0)
    assert queue.take(after=5, n=2) == "a b"


def test_held_for_a_while() -> None:
    assert [held_until(NOW, deadline and NOW + deadline) - NOW for deadline in (None, 60_000, 8000)] == [
        10_000,
        10_000,
        2000,
    ]


def held() -> Queue:
    """A request is held for worker 2, and another one waits that ranks behind it."""
    queue = Queue().add("held")
    queue.take(worker=2)
    queue.back("held", generated=9, home=2, until=NOW + 10_000)
    return queue.add("other")


def test_held_is_its_workers_own() -> None:
    queue = Queue().add("held", tenant="A")
    queue.take(worker=2)
    queue.back("held", generated=9, home=2, until=NOW + 10_000)
    assert queue.add("other").take(worker=2) == "held"


def test_held_goes_where_nothing_else_is() -> None:
    assert held().take(worker=2) == "held"
    assert held().take(n=2) == "other held"


def test_then_it_waits_for_nobody() -> None:
    assert held().take(after=9999) == "other"
    assert held().take(after=10_000) == "held"
