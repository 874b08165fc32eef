"""Types of the brokers: arguments, results, counts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from streamfleet.common.broker.types import Claim, Lease
from streamfleet.common.protocol import LANES, Lane, Status
from streamfleet.operator.broker.audit import Audit, LaneAudit

small = st.integers(0, 50)


def claim(**fields: bytes) -> Claim:
    """A claim of an entry with these fields."""
    return Claim(Lease(Lane.HIGH, "1-2", 1, "r"), {name.encode(): value for name, value in fields.items()})


def test_a_lease_names_its_entry() -> None:
    assert claim().lease.entry == "high:1-2"


def test_a_claim_has_its_reply_name_when_it_is_usable() -> None:
    assert claim(reply=b"me").reply == "me"
    for odd in (b"", b"a b", b"\xff", b"x" * 257, b"high:1-1"):
        assert claim(reply=odd).reply == ""


@st.composite
def audits(draw: st.DrawFn) -> Audit:
    """An audit of a queue where all is well."""
    ended = {status.value: draw(small) for status in Status}
    duplicate, id_reused, vanished, delayed = draw(small), draw(small), draw(small), draw(small)
    lanes, staged = [], sum(ended.values()) + duplicate + id_reused + vanished + delayed
    undelivered_total = 0
    for lane in LANES:
        ready, running, handed_out, undelivered = (draw(small) for _ in range(4))
        waiting = delayed if lane is Lane.CRITICAL else 0
        length = ready + running + handed_out + undelivered + waiting
        lanes.append(LaneAudit(lane, length, ready, running, handed_out, undelivered, 0))
        staged += ready + running
        undelivered_total += undelivered + handed_out
    counts = {"staged": staged, "duplicate": duplicate, "id_reused": id_reused, "vanished": vanished, **ended}
    added = staged + undelivered_total
    lanes[0] = replace(lanes[0], ever_added=added)
    return Audit(counts, delayed, 0, 0, lanes)


@given(audits())
def test_a_queue_where_all_is_well_has_no_problems(audit: Audit) -> None:
    assert audit.problems() == []
    assert audit.accepted == sum(audit.ended.values()) + audit.outstanding
    lanes = [replace(lane, undelivered=None, ever_added=None) for lane in audit.lanes]
    blind = replace(audit, lanes=lanes)
    assert (blind.problems(), blind.accepted) == ([], audit.accepted)


@given(audits(), st.sampled_from(["staged", *Status, "duplicate", "id_reused", "vanished"]), st.integers(1, 5))
def test_a_count_that_is_off_is_noticed(audit: Audit, name: str, by: int) -> None:
    counts = {**audit.counts, name: audit.counts[name] + by}
    assert replace(audit, counts=counts).problems()


@given(
    audits(),
    st.sampled_from(["length", "ready", "running", "handed_out", "undelivered"]),
    st.sampled_from(range(4)),
    st.integers(1, 5),
)
def test_an_entry_too_many_anywhere_is_noticed(audit: Audit, where: str, lane: int, by: int) -> None:
    lanes = list(audit.lanes)
    lanes[lane] = replace(lanes[lane], **{where: getattr(lanes[lane], where) + by})
    assert replace(audit, lanes=lanes).problems()


def test_an_empty_audit_reads_well() -> None:
    audit = Audit({}, 0, 0, 0)
    assert audit.line() == "accepted=0 = succeeded=0 + failed=0 + expired=0 + cancelled=0 + dead=0"
    assert audit.problems() == []
