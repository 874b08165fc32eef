"""Names of streams that a mistyped XADD made, told from the project's own and from those of other programs."""

from __future__ import annotations

import pytest

from streamfleet.common.keys import Keys, gateway_base
from streamfleet.common.protocol import LANES
from streamfleet.operator.mistyped import SURE, UNSERVED, judge

OWN = "{default}:"
MISTYPED = {
    "high": """
        {default}:lane:High {DEFAULT}:LANE:HIGH {Default}:lane:high {default}:Lane:high default:lane:high
        Default:Lane:High default:lanes:high default_lane_high {default}lane:high {default}:lanes:high
        {default}:lane:highs {default}:lane.high {default}::lane:high {default}:lane:high: "{default}:lane:high"
        '{default}:lane:high' {{default}}:lane:high {default:lane:high default}:lane:high [default]:lane:high
        <default>:lane:high {default}:high {default}:hi {default}high {default}:lane:hihg {default}:lnae:high
        {default}:queue:high {defualt}:lane:high {defaults}:lane:high {de-fault}:lane:high {efault}:lane:high
    """,
    "low": "{default}:low {default}:Low {default}:lane:lows default:lane:LOW",
    "critical": "{default}:lane:crit {default}:lane:critcal default:lane:critical",
    "normal": "{default}:lane:norm {default}:normal {DEFAULT}:lane:normal",
    "": "{default}:lane:urgent {default}:lane: {default}:lane {default}:lane:0 default:lane:urgent",
}
NAMES = [(lane, name) for lane, names in MISTYPED.items() for name in names.split()]
WITH_BLANKS = ("{default}:lane:high ", " {default}:lane:high", "{default}:lane: high", "{default} :lane:high")
NAMES += [("high", name) for name in (*WITH_BLANKS, "{ default }:lane:high", "{default}:lane:high\n")]
OTHERS = """
    orders mystream traffic:lane:3 {traffic}:lane:3 {traffic}:lane:left airplane:high planets notifications:high
    events:low mail:normal {mail}:normal bull:{mail}:events default default:events defaults high lane {}
    {default {default} default:high {default}:events \x00 {default}:events:0
"""


@pytest.mark.parametrize(("lane", "name"), NAMES)
def test_the_name_alone_tells_and_so_what_was_meant(lane: str, name: str) -> None:
    sure, meant = judge(name, [OWN])
    assert SURE <= sure < UNSERVED
    assert meant.partition(", as no worker")[0] == f"{OWN}lane:{lane or ' and one of critical, high, normal, low'}"


@pytest.mark.parametrize(
    "queue", ["{images}:", "{q}:", "prod:{default}:", "{chat-2}:", "{chat-12}:", "{team-b}:", "{t2}:"]
)
def test_another_queue_that_no_worker_has_served_is_no_mistake(queue: str) -> None:
    served = [OWN, "{chat-1}:", "{chat-21}:", "{team-a}:", "{t}:"]
    assert judge(f"{queue}lane:high", served) == (UNSERVED, queue)
    assert judge(f"{queue}lane:high", [*served, queue])[0] == 0


@pytest.mark.parametrize("name", ["", *OTHERS.split()])
def test_names_of_other_programs_are_not_enough(name: str) -> None:
    assert judge(name, [OWN])[0] < SURE


@pytest.mark.parametrize(
    "name", ["images:lane:high", "lane:high", "default-low", "{images}:high", "{default}:requests"]
)
def test_what_may_be_of_another_program_is_looked_into(name: str) -> None:
    assert judge(name, [OWN])[0] == SURE - 1


@pytest.mark.parametrize("prefix", ["", "app:"])
@pytest.mark.parametrize("queue", ["default", "lane", "high", "a-lane:high", "llama3.1:8b"])
def test_streams_of_the_project_are_no_finding(queue: str, prefix: str) -> None:
    keys = Keys(queue, prefix)
    names = ["me", "lane:high", "lane:High", "{default}:lane:high", "low"]
    own = [*keys.lanes, keys.dead, keys.wake, keys.cancels, keys.cancel_requests]
    own += [each for name in names for each in (keys.reply(name), keys.tokens(name))]
    own += [f"{each}:broken:1790000000000" for each in keys.shared()]
    own += [gateway_base(prefix) + name for name in ("webhooks:due", "webhooks:dead", "key_changes", "lane:high")]
    assert {name: judge(name, [OWN, keys.base]) for name in own if judge(name, [OWN, keys.base])[0]} == {}


def test_a_queue_with_a_prefix_or_odd_signs_is_known_without_its_braces() -> None:
    served = [Keys("llama3.1:8b", "app:").base, OWN]
    for name in ("app:llama3.1:8b:lane:high", "llama3.1:8b:lane:high", "{llama3.1:8B}:lane:High", "{llama3.1:8b}:high"):
        sure, meant = judge(name, served)
        assert (sure >= SURE, meant) == (True, "app:{llama3.1:8b}:lane:high"), name
    for lane in LANES:
        assert judge(f"{{llama3.1:8b}}:lane:{lane}", served)[0] == SURE, "the prefix is missing"
