"""The rules of order. docs/order.md has each of them, with the sentence that it has here.

`# rule: <name>` marks the line of the model that makes each; `test_<name>` of test_model.py is an example of it, and
test_mutants.py takes each out and sees its example fail. Where a sentence and the model contradict each other, the
sentence decides.

Decided between variants by sessions in virtual time, as bench.goodput has (8 workers at a load of 1.5, three runs):

- What another home is late with goes first only if it is near or has waited for 10 s, and in turns after 3 s: else full
  workers take each other's requests. But a worker with room left takes all that is D old, not only a lane's first: else
  an idle worker would let a request wait for 3 D.
- Six ahead, not three: with 1,000 tenants alike 83.9 % of tokens are cached, not 80.1, and 17.8 % of requests missed,
  not 24.5. Worse is only the first token of two small tenants beside 18 floods (p99 13.8 s, not 11.7).
- Six for what is nearly late, too. With three, first tokens of small tenants beside floods come later (p99 4.0, 4.1,
  15.4 s in place of 3.7, 3.7, 13.8), though with 1,000 alike 1.3 points more are cached.

Not order, so not here: who watches, listens and is woken; how much room a worker has, and when it borrows a reserve;
what a tenant may have waiting; what is kept of an interrupted answer; how long runs take; when records are forgotten.
"""

LANES = {
    "urgent_lane_first": "The more urgent lane goes first.",
    "guaranteed_share": "A lane that waits is guaranteed its share of picks: with a credit of 1000 it goes first.",
    "saves_up_while_it_waits": "With each pick, a waiting lane's credit grows by its share; an empty lane has none.",
    "unused_pick_is_owed": "What a lane could not take for want of room, it is owed.",
    "rank_is_deadline_or_patience": "A request ranks by its deadline, without one as if that were 300 s after it came.",
    "equal_ranks_in_order_of_arrival": "Equal ranks run in the order in which they came.",
    "expired_is_not_started": "A request whose deadline has passed is not started.",
    "out_of_reach_is_not_started": "Judged, a request that cannot be done in time is not started.",
    "judged_once_before_its_first_run": "What comes back from a worker is not judged.",
    "nobody_idle_beside_work": "No worker with room is idle beside a request for longer than 1 s after its arrival.",
}
FAIRNESS = {
    "shared_while_a_tenant_waits": "Without tenants, a lane runs by rank; with some, tenants take turns.",
    "least_first": "The next pick goes to the tenant in turn that was charged least; of equal ones by name.",
    "weight": "A tenant is charged for its weight: with 3 it gets three times as much.",
    "settled_by_the_weight_of_the_pick": "A run is settled by the weight that its tenant had at the pick.",
    "by_rank_in_its_turn": "In a tenant's turn the earliest rank goes first, of what this worker may take.",
    "nobodys_are_one_tenant": "All requests without a tenant are one tenant.",
    "nobodys_are_charged_where_a_lane_is_shared": "They are charged only by picks of a lane that is shared.",
    "nobodys_enter_at_the_level": "They get no credit for the time before the lane was shared.",
    "nobodys_get_no_credit": "Nor for any other time: what comes without a tenant starts at the level.",
    "unread_costs_the_usual": "A request without a tenant costs the usual until its body is read, with a home too.",
    "newcomer_starts_a_request_below": "A tenant with a new request starts one such request below the level.",
    "what_comes_back_brings_no_credit": "It starts at the level with a request that comes back from a worker.",
    "credit_once_an_hour": "It starts below the level once an hour, whichever the lane; else at the level.",
    "before_those_at_the_level": "A tenant that comes without credit goes before those that wait at the level.",
    "history_is_a_run_that_ended": "A name has history once a run has ended its request, or left a charge.",
    "no_credit_without_history": "A name without history does not start below the level.",
    "new_names_one_behind_another": "Between two such names, those with history get as much as the first of the two.",
    "history_of_the_next_in_turn": "Names with history are counted among the 16 tenants that are next in turn.",
    "new_names_among_themselves_are_close": "If none of these has history, it is as if 128 had.",
    "no_other_credit": "It gets no other credit: what it was charged before still counts, and is paid back first.",
    "level_of_those_in_turn": "The level is the least tokens of those that wait in turn.",
    "level_rises_by_turns": "The level does not fall below what was picked in turn; picks out of turn do not raise it.",
    "nearly_late_first": "A request that would be too late within 3 seconds goes first.",
    "few_ahead": "A request goes out of turn only if its tenant is at most six such requests above the level.",
    "a_flood_has_one_row": "Of each tenant one nearly late request is looked at, so that a flood hides nobody's.",
    "keeps_its_turn": "A tenant of which this worker may take nothing keeps its turn, and others go.",
    "names_beyond_a_number_are_other": "A queue knows 2,000 tenants; others, and odd names, share turns as `other`.",
    "limit_of_a_tenant": "A tenant with as many running as it may waits, and others pass it.",
    "limit_counts_since_there_is_one": "A limit counts the runs that began since there is one.",
    "after_its_limit_no_credit": "A tenant that was at its limit comes back without credit.",
    "limits_hide_nobody": "Requests of a tenant at its limit hide no other's.",
    "charged_at_the_pick": "A pick is charged the prompt by its bytes, and the output by the class of its limit.",
    "lengths_before_any_is_known": "Before lengths are known: a quarter token a byte, and 256 tokens or a lower limit.",
    "lengths_by_class_of_limit": "Lengths are those of the tenant's requests with a limit of this size.",
    "lengths_are_learnt": "Lengths are learnt from requests that succeed and tell their use.",
    "limit_that_was_exceeded": "A limit bounds no estimate once such a request had more output than its limit.",
    "summed_up_at_the_end": "What a tenant was charged in all is summed up when its runs end.",
    "settled_by_what_was_used": "What the engine has counted is charged, without what earlier runs were charged.",
    "nothing_if_it_did_not_reach_the_engine": "What did not reach the engine, and has no answer, costs nothing.",
    "uncounted_is_charged_by_time": "Else its prompt, and the output that was seen or that its time was worth.",
    "failed_attempt_is_charged": "An attempt that fails is charged like a run that nobody counted.",
    "generated_stays_charged": "What a worker that hands a request back has generated stays charged.",
    "kept_once": "It stays charged once, however often the request goes on.",
    "lost_is_free": "What is lost with its worker is charged to nobody, and counted as lost.",
    "what_did_not_run_is_free": "A pick that is ended without a run is not charged.",
}
LOCALITY = {
    "session_stays_at_its_home": "Turns of a session go to the worker that had the last one.",
    "beginning_counts_when_it_comes_again": "A beginning of prompts has a home from its second request on.",
    "beginning_goes_where_it_was_read": "New ones go where it was read, unless that worker has over 4 requests more.",
    "least_loaded_is_home": "Else to the worker with the least to do.",
    "hot_session_has_several_homes": "A session with more than 8 uses lately may have one home for each 8.",
    "hottest_is_anybodys": "Beyond 16 uses, what finds all of its homes busy is anybody's.",
    "who_takes_it_is_its_home": "Who takes a request is the home of what comes next.",
    "own_and_nobodys_by_rank": "A worker takes what waits for itself and for nobody, by rank.",
    "left_to_its_home_for_a_second": "What waits for another worker is left to it for 1 s.",
    "near_ones_of_another_home_first": "Then it goes first if its rank is within 3 s, and 1 s before all else.",
    "long_waiting_ones_of_another_home_first": "Or if it has waited for 10 s.",
    "with_room_left_what_waited_for_others": "Else it goes to a worker that has room left.",
    "own_first": "Where tenants share a lane, what waits for the worker goes first.",
    "own_only_if_nothing_more_urgent": "Not if its tenant has a request within 10 s that ranks 1 s earlier.",
    "in_its_turn_after_three_seconds": "In its tenant's turn, another home's goes after 3 s; with room left after 1 s.",
    "another_homes_count_as_later": "It counts as 10 s later than its rank.",
    "dead_home_frees": "What waits for a worker that is gone (known within 2 s), or leaves, is anybody's.",
    "older_program_first": "A turn ranks earlier by the age of its program.",
    "at_most_half_of_the_time": "By at most half of its time to its rank.",
    "deadline_is_kept_to": "What came with a deadline ranks by that.",
    "after_half_by_its_deadline": "A turn that has waited for the other half goes by its own deadline again.",
}
URGENT = {
    "reserve": "A request of `low` starts only while a reserve of slots stays free: of 40 it fills 32.",
    "normal_leaves_an_eighth": "`normal` leaves an eighth of the reserve, at least one slot if it has several.",
    "share_against_the_reserve": "A lane owed a pick may use the reserve while more wait in lanes above than fit.",
    "share_is_bounded": "By this, it and the lanes below hold no more than it may fill: of 40 `low` 32, `normal` 39.",
    "who_gives_way": "The least urgent lane gives way, then who did least often, then who has most time.",
    "least_work_lost": "Then the shortest run; one that can be continued counts a tenth.",
    "interrupted_three_times_stays": "What was interrupted three times does not give way.",
    "what_would_be_late_stays": "Nor what would not fit twice before its deadline.",
    "what_came_by_its_share_stays": "Nor what came by the share of its lane.",
    "none_if_not_enough": "If not enough may give way, none does.",
    "back_at_its_old_rank": "What gave way goes back at its old rank.",
    "held_for_a_while": "It is held for its worker for 10 s, or a quarter of the time to its deadline.",
    "held_is_its_workers_own": "Its worker takes it like what waits for this worker.",
    "held_goes_where_nothing_else_is": "Others take it as soon as they find nothing else in its lane.",
    "then_it_waits_for_nobody": "After its time it waits for nobody.",
}
RULES = LANES | FAIRNESS | LOCALITY | URGENT
