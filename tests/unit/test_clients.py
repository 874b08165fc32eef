"""`make clients` judges each call as it is expected, also where it is to fail."""

from __future__ import annotations

import re

import pytest

from tests.clients.__main__ import BEGIN, END, PAGE, Family, Row, families, table

FAMILY = Family("a", "a.py", ("a==1",), False, False, "", {"streamed": "until then"})


@pytest.mark.parametrize(
    ("call", "error", "wrong"),
    [("chat", "", False), ("chat", "400", True), ("streamed", "400", False), ("streamed", "", True)],
)
def test_what_is_expected_to_fail_has_to(call: str, error: str, wrong: bool) -> None:
    assert Row(FAMILY, call, error).wrong is wrong


def test_each_version_is_pinned() -> None:
    for family in families([]):
        assert all(re.search(r".(==|@)\d", package) for package in family.packages), family.name


def test_the_page_has_a_row_for_each_family() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    expected = table([Row(family, "", "") for family in families([])]).splitlines()[2:]
    assert [line.split(" | ")[0] for line in shown] == [line.split(" | ")[0] for line in expected]
    assert "a fault" not in "".join(shown)
