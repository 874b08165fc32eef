"""Meaning of an answer: delivered, later, given up; and how long later is."""

from __future__ import annotations

import re
from itertools import accumulate, chain
from pathlib import Path

import pytest

from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import load
from streamfleet.common.settings_gateway import GatewaySettings, WebhookSettings
from streamfleet.gateway.webhook_messages import Ending, Reason, Settlement, WebhookLimits
from streamfleet.gateway.webhooks.retry_policy import (
    Answer,
    RetryPolicy,
    decide,
    give_up_unattempted,
    retry_after_ms,
)
from streamfleet.gateway.webhooks.sender import TIMEOUT_S

NOW = 1_700_000_000_000
DAY_MS = 86_400_000
PLAN = RetryPolicy()


def settled(
    answer: Answer,
    attempt: int = 1,
    age_ms: int = 0,
    chance: float = 0.0,
    retry_policy: RetryPolicy = PLAN,
    refusals: int = 0,
) -> Settlement:
    return decide(answer, attempt, NOW - age_ms, NOW, retry_policy, chance, refusals)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_delivered(status: int) -> None:
    assert settled(Answer(status)) == Settlement(Ending.DELIVERED, status=status)


@pytest.mark.parametrize("status", [0, 100, 199, 300, 301, 302, 307, 400, 401, 404, 409, 429, 500, 502, 503, 504])
def test_everything_else_is_tried_again(status: int) -> None:
    ending = settled(Answer(status, error="" if status else "no answer"))
    assert (ending.ending, ending.delay_ms) == (Ending.LATER, 5_000)
    assert ending.error == (f"the receiver answered {status}" if status else "no answer")


def test_410_is_given_up_at_once() -> None:
    ending = settled(Answer(410))
    assert (ending.ending, ending.reason, ending.status) == (Ending.DEAD, Reason.GONE, 410)


@pytest.mark.parametrize(("attempt", "start_ms"), [(1, 0), (6, DAY_MS)])
def test_an_address_that_this_gateway_refuses_is_left_to_others_for_more_than_an_hour(
    attempt: int, start_ms: int
) -> None:
    """However old the webhook is: others may have tried it before."""
    refused, ages = Answer(error="x", refused=True), [start_ms]
    assert settled(refused, attempt, start_ms) == Settlement(Ending.BACK, 1_000, Reason.REFUSED, error="x")
    assert settled(refused, attempt, start_ms, chance=1.0).delay_ms == 1_200
    while (ending := settled(refused, attempt, ages[-1], refusals=len(ages) - 1)).ending is Ending.BACK:
        ages.append(ages[-1] + ending.delay_ms)
    assert (ending.ending, ending.reason, ending.error) == (Ending.DEAD, Reason.REFUSED, "x")
    assert 3_600_000 < ages[-1] - start_ms < 2 * 3_600_000
    assert len(ages) < 50


def test_a_refused_address_is_given_up_at_the_end_of_the_webhooks_life() -> None:
    assert settled(Answer(error="x", refused=True), age_ms=5 * DAY_MS).ending is Ending.DEAD


def test_an_address_that_no_gateway_may_call_is_given_up_at_once() -> None:
    ending = settled(Answer(error="x", refused=True, forbidden=True))
    assert (ending.ending, ending.reason, ending.error) == (Ending.DEAD, Reason.REFUSED, "x")


def test_the_schedule_is_the_one_that_the_specification_suggests() -> None:
    waits = [settled(Answer(500), attempt).delay_ms // 1000 for attempt in range(1, 10)]
    hours = [0, 5, 305, 2_105, 9_305, 27_305, 63_305, 113_705, 185_705, 272_105]
    assert list(accumulate(chain([0], waits))) == hours
    assert settled(Answer(500), 10).reason is Reason.ATTEMPTS
    assert PLAN.attempts == 10


def test_jitter_adds_up_to_a_fifth() -> None:
    assert [settled(Answer(500), 2, chance=chance).delay_ms for chance in (0.0, 0.5, 1.0)] == [
        300_000,
        330_000,
        360_000,
    ]


def test_days_bound_it_whatever_the_attempts() -> None:
    retry_policy = RetryPolicy((60.0,) * 50, 10 * 60_000)
    assert settled(Answer(500), 9, 9 * 60_000, retry_policy=retry_policy).ending is Ending.LATER
    assert settled(Answer(500), 9, 9 * 60_000 + 1, retry_policy=retry_policy).reason is Reason.AGE
    assert give_up_unattempted(3, NOW - 10 * 60_000, NOW, retry_policy) is None
    late = give_up_unattempted(3, NOW - 10 * 60_000 - 1, NOW, retry_policy)
    assert late is not None
    assert late.reason is Reason.AGE


def test_an_attempt_beyond_the_last_is_one_that_died_with_its_gateway() -> None:
    assert give_up_unattempted(10, NOW, NOW, PLAN) is None
    lost = give_up_unattempted(11, NOW, NOW, PLAN)
    assert lost is not None
    assert lost.reason is Reason.LOST


@pytest.mark.parametrize("status", [429, 503])
def test_who_asks_for_time_gets_it(status: int) -> None:
    assert settled(Answer(status, retry_after="120")).delay_ms == 120_000
    assert settled(Answer(status, retry_after="1")).delay_ms == 5_000, "but not sooner than anybody else"
    assert settled(Answer(status, retry_after="9999999")).delay_ms == DAY_MS, "nor for ever"
    assert settled(Answer(500, retry_after="120")).delay_ms == 5_000


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("0", 0),
        (" 30 ", 30_000),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60_000),
        ("Tue, 14 Nov 2023 22:12:20 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY_MS),
        ("", 0),
        ("soon", 0),
        ("-5", 0),
        ("1e9", 0),
        ("٣", 0),
        ("9" * 400, 0),
        ("Tue, 99 Foo 2023 99:99:99 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, wanted: int) -> None:
    assert retry_after_ms(header, NOW) == wanted


@pytest.mark.parametrize("group", [WebhookSettings, GatewaySettings])
def test_settings_are_read_as_people_write_them(group: type[WebhookSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    """By themselves, and among the gateway's, whose checks must not take the place of these."""
    monkeypatch.setenv("STREAMFLEET_GATEWAY_WEBHOOKS_PORTS", "443, 8443")
    monkeypatch.setenv("STREAMFLEET_GATEWAY_WEBHOOKS_ALLOW_PRIVATE", "true")
    settings = load(group)
    assert settings.gateway_webhooks_ports == (443, 8_443)
    assert settings.gateway_webhooks_allow_private


def test_the_reasons_of_dead_webhooks_are_listed(repository: Path) -> None:
    gateway = (repository / "docs/gateway.md").read_text(encoding="utf-8")
    section = gateway.partition("### Dead webhooks")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {*Reason}


def test_an_attempt_that_starts_in_the_first_half_of_its_lease_ends_before_it() -> None:
    assert WebhookLimits().lease_ms > 2_000 * TIMEOUT_S


def test_nothing_is_allowed_unasked() -> None:
    settings = load(WebhookSettings)
    assert not settings.gateway_webhooks_allow_private
    assert not settings.gateway_webhooks_allow_http
    assert settings.gateway_webhooks_ports == (80, 443)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORTS", "https", "PORTS"),
        ("PORTS", "70000", "must be ports such as 80,443"),
        ("LIMIT", "0", "LIMIT"),
    ],
)
def test_settings_that_make_no_sense_are_named(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"STREAMFLEET_GATEWAY_WEBHOOKS_{name}", value)
    for group in (WebhookSettings, GatewaySettings):
        with pytest.raises(SettingsError, match=said):
            load(group)
