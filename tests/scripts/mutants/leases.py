"""Guards of a worker's actions on entries that it holds."""

from __future__ import annotations

from tests.scripts.mutants.mutant import HISTORY, Mutant

MUTANTS = (
    Mutant(
        "fence: the attempt",
        "if holds[lane][id] ~= attempt then return false end",
        "if not holds[lane][id] then return false end",
        "renew.of_several_leases_one_of_another_attempt_is_lost",
    ),
    Mutant(
        "fence: the attempt, of one that comes alone",
        "return attempt == alone end",
        "return alone ~= nil end",
        HISTORY,
        16,
    ),
    Mutant(
        "fence: the worker",
        "first, last, #ids * 2, worker)",
        "first, last, #ids * 2)",
        "renew.leases_that_another_worker_has_in_the_same_attempt_are_lost",
    ),
    Mutant(
        "fence: the worker, of each entry",
        "GROUP, id, id, 1, worker)[1]",
        "GROUP, id, id, 1)[1]",
        "renew.leases_among_many_others_are_renewed_and_no_others",
    ),
    Mutant(
        "fence: a range of more entries than one command reads",
        caught_by="renew.leases_among_many_others_are_renewed_and_no_others",
    ),
    Mutant("fence: a lease counts once", caught_by="release.one_lease_twice_in_a_call_is_released_once"),
    Mutant(
        "renew: the fence",
        "if holds(lane, id, lease[3]) then\n    ids[lane]",
        "if true then\n    ids[lane]",
        HISTORY,
        2,
    ),
    Mutant("renew: deliveries are left alone", seed=1),
    Mutant("renew: what ended is said", "(answered(lease[4]) and 2 or 1)", "1", HISTORY, 22),
    Mutant("renew: an entry that has vanished is counted", seed=13),
    Mutant("renew: what the queue remembers of an entry that has vanished goes", seed=13),
    Mutant(
        "release: the fence",
        "local held = holds(lane, id, lease[3])",
        "local held = true",
        HISTORY,
        0,
    ),
    Mutant("release: at once, for somebody", seed=9),
    Mutant(
        "release: deleted entries are counted as vanished",
        "      remove_entry(lane, id)\n      count('vanished')\n    end\n  end\nend\nwrite_counts()\nfor lane, turn",
        "    end\n  end\nend\nwrite_counts()\nfor lane, turn",
        HISTORY,
        9,
    ),
    Mutant(
        "release: a turn that was not used comes again",
        "if turn and tonumber",
        "if false and tonumber",
        "release.a_turn_that_was_not_used_comes_again_before_more_urgent_lanes",
        argument="low",
    ),
    Mutant("retry_later: the fence"),
    Mutant("retry_later: attempts are kept", seed=1),
    Mutant(
        "retry_later: lost workers are told",
        "workers_lost(attempts_record(lane, id), lost and worker or nil)",
        "{}",
        HISTORY,
        1,
    ),
    Mutant(
        "attempts: lost workers are remembered",
        "local names = workers_lost(attempts_record(lane, id), worker)",
        "local names = {}",
        HISTORY,
        1,
    ),
    Mutant(
        "attempts: so many names and no more", caught_by="reclaim.a_dead_letter_names_the_last_workers_that_were_lost"
    ),
    Mutant("retry_later: not past the deadline", seed=2),
    Mutant("retry_later: not for ever", seed=1),
    Mutant("retry_later: not what ended", seed=1),
    Mutant("retry_later: no longer pending", seed=1),
    Mutant(
        "retry_later: somebody is woken",
        caught_by="retry_later.a_retry_without_delay_is_ready_at_once_and_somebody_is_woken",
    ),
)
