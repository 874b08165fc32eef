"""Webhooks over real Redis to a real HTTP server: signed, once, again, given up, and never where they may not go."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import structlog
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from streamfleet.common.clock import Clock
from streamfleet.common.errors import InvalidRequest
from streamfleet.common.settings import QueueSettings, load
from streamfleet.common.settings_gateway import WebhookSettings
from streamfleet.gateway.broker.webhooks import WebhookBroker, WebhooksFull
from streamfleet.gateway.queues import open_connection
from streamfleet.gateway.webhook_messages import DeadWebhook, WebhookLimits, WebhookNames
from streamfleet.gateway.webhooks.deliverer import ConcurrencyLimits
from streamfleet.gateway.webhooks.retry_policy import MOST_REFUSALS, RetryPolicy
from streamfleet.gateway.webhooks.sender import TIMEOUT_S
from streamfleet.gateway.webhooks.service import MOST_BODY_BYTES, Webhooks, open_webhook_broker
from streamfleet.gateway.webhooks.signing import Secret, encode_secrets, new_secret
from streamfleet.gateway.webhooks.targets import NameUnknown, Resolver, resolve
from tests.clocks import ClockAhead
from tests.integration.forked import ForkedProcess
from tests.integration.webhook_receiver import Came, Receiver, Say
from tests.security.tls import Authority
from tests.waiting import eventually

HOOKS = "{gateway}/webhooks:"
NEVER = 3_600.0
FORMER, SECRET = new_secret(), new_secret()
DATA = {"id": "batch_1", "status": "completed"}
SOON = RetryPolicy((0.0, 0.0))
"""Three attempts, one after the other."""
LOCAL = {
    "gateway_webhooks_allow_private": True,
    "gateway_webhooks_allow_http": True,
    "gateway_webhooks_ports": (0,),
}


def names(found: Mapping[str, Sequence[str]], asked: list[str] | None = None) -> Resolver:
    """A resolver that knows these names, and the system's for others; what it was asked goes to `asked`."""

    async def resolver(host: str, port: int) -> Sequence[str]:
        if asked is not None:
            asked.append(host)
        return found[host] if host in found else await resolve(host, port)

    return resolver


@dataclass
class Scene:
    """Redis with a tenant's secret in it, and gateways that deliver."""

    url: str
    redis: redis.asyncio.Redis
    broker: WebhookBroker
    stack: AsyncExitStack

    def make(
        self,
        resolver: Resolver = resolve,
        trust: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        retry_policy: RetryPolicy = SOON,
        limits: ConcurrencyLimits | None = None,
        timeout_s: float = TIMEOUT_S,
        lease_ms: int = WebhookLimits().lease_ms,
        **settings: Any,
    ) -> Webhooks:
        """A gateway's webhooks that deliver nothing yet."""
        group = load(WebhookSettings, **LOCAL | settings)
        held = replace(WebhookLimits.of(group), lease_ms=lease_ms)
        broker = WebhookBroker(open_connection(load(QueueSettings, redis_url=self.url)), WebhookNames(), held)
        return Webhooks(
            broker,
            group,
            resolver=resolver,
            trust=trust,
            clock=clock,
            retry_policy=retry_policy,
            limits=limits,
            timeout_s=timeout_s,
        )

    def started(self, *given: Any, **settings: Any) -> Webhooks:
        """The same, delivering until the test ends."""
        made = self.make(*given, **settings)
        made.start()
        self.stack.push_async_callback(made.stop, 0.0)
        return made

    async def receiver(self, answer: Callable[[int, Came], Say] = lambda _n, _came: Say()) -> Receiver:
        return await self.stack.enter_async_context(Receiver(answer).serving())

    async def nothing_left(self) -> None:
        async def empty() -> bool:
            return not any([await self.redis.hlen(f"{HOOKS}messages"), await self.redis.xlen(f"{HOOKS}due")])

        await eventually(empty, 20, "every webhook ended")

    async def both_taken(self, receiver: Receiver) -> None:
        async def taken() -> bool:
            return bool(receiver.came) and await self.redis.hlen(f"{HOOKS}tries") == 2

        await eventually(taken, 20, "one is sent, one waits for its turn")

    async def dead(self) -> DeadWebhook:
        """The one dead webhook."""
        found = await eventually(lambda: self.broker.dead(10), what="a dead webhook")
        (letter,) = found
        await self.nothing_left()
        return letter


@pytest.fixture
async def scene(redis_url: str, raw_redis: redis.asyncio.Redis) -> AsyncIterator[Scene]:
    broker = open_webhook_broker(load(QueueSettings, redis_url=redis_url), load(WebhookSettings))
    await broker.set_secrets("t1", b"", encode_secrets([Secret(SECRET, 1)]))
    async with AsyncExitStack() as stack:
        yield Scene(redis_url, raw_redis, broker, stack)
    await broker.close()


async def announce(webhooks: Webhooks, url: str, event_id: str = "batch_1.completed") -> str:
    return await webhooks.announce(url, "batch.completed", DATA, event_id=event_id, tenant="t1")


# -- delivered ---------------------------------------------------------------------------------------------


async def test_a_receiver_can_verify_what_comes(scene: Scene) -> None:
    receiver = await scene.receiver()
    webhooks = scene.started()
    name = await announce(webhooks, receiver.url(path="/hook?token=abc"))
    await scene.nothing_left()
    (came,) = receiver.came
    verified: Any = Webhook(SECRET).verify(came.body, dict(came.headers))
    assert verified == json.loads(came.body)
    assert (verified["type"], verified["data"]) == ("batch.completed", DATA)
    assert verified["timestamp"].endswith("Z")
    assert (came.path, came.id, came.headers["content-type"]) == ("/hook?token=abc", name, "application/json")
    assert came.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert "traceparent" not in came.headers
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(came.body, dict(came.headers))


async def test_after_failures_the_same_webhook_comes_again_until_it_is_taken(scene: Scene) -> None:
    receiver = await scene.receiver(lambda n, _: Say(500) if n < 3 else Say(200))
    name = await announce(scene.started(), receiver.url())
    await scene.nothing_left()
    assert [came.id for came in receiver.came] == [name] * 3, "a receiver knows it again"
    assert len({came.body for came in receiver.came}) == 1
    for came in receiver.came:
        Webhook(SECRET).verify(came.body, dict(came.headers))
    assert await scene.broker.dead(1) == []


async def test_an_event_is_told_once_whoever_announces_it(scene: Scene) -> None:
    receiver = await scene.receiver()
    one, other = scene.started(), scene.started()
    found = [await announce(each, receiver.url()) for each in (one, other, one)]
    await scene.nothing_left()
    found += [await announce(other, receiver.url()), await announce(one, receiver.url(path="/2"))]
    await scene.nothing_left()
    assert len(set(found)) == 2
    assert [came.path for came in receiver.came] == ["/hook", "/2"]


async def test_many_are_each_delivered_once_by_several(scene: Scene) -> None:
    receiver = await scene.receiver()
    gateways = [scene.started(limits=ConcurrencyLimits(per_host=16)) for _ in range(3)]
    sent = [await announce(gateways[n % 3], receiver.url(), f"e{n}") for n in range(60)]
    await scene.nothing_left()
    assert sorted(came.id for came in receiver.came) == sorted(sent)


# -- not delivered -----------------------------------------------------------------------------------------


async def test_one_is_dead_after_its_last_attempt(scene: Scene) -> None:
    receiver = await scene.receiver(lambda _n, _: Say(500, body=b"secret of the receiver"))
    name = await announce(scene.started(), receiver.url())
    letter = await scene.dead()
    assert (letter.webhook_id, letter.reason, letter.attempts, letter.status) == (name, "attempts", 3, 500)
    assert letter.error == "the receiver answered 500", "and nothing that it wrote"
    assert len(receiver.came) == 3


async def test_410_ends_it_at_once(scene: Scene) -> None:
    receiver = await scene.receiver(lambda _n, _: Say(410))
    await announce(scene.started(), receiver.url())
    assert ((await scene.dead()).reason, len(receiver.came)) == ("gone", 1)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_asks_for_time_gets_it(scene: Scene, status: int) -> None:
    receiver = await scene.receiver(lambda _n, _: Say(status, (("Retry-After", "600"),)))
    name = await announce(scene.started(), receiver.url())
    due_ms = await eventually(lambda: scene.redis.zscore(f"{HOOKS}later", name), what="it waits")
    assert 590_000 < float(due_ms or 0) - await scene.broker.now_ms() <= 600_000


async def test_a_redirect_is_not_followed(scene: Scene) -> None:
    other = await scene.receiver()
    receiver = await scene.receiver(lambda _n, _: Say(307, (("Location", other.url()),)))
    await announce(scene.started(retry_policy=RetryPolicy((0.0,))), receiver.url())
    letter = await scene.dead()
    assert (letter.error, letter.status) == ("the receiver answered 307", 307)
    assert (len(receiver.came), other.connections) == (2, 0)


@pytest.mark.parametrize(
    ("said", "within_s", "error"),
    [
        (Say(200, after_s=NEVER), 0.3, "no answer within 0.3 s"),
        (Say(0), 10, "the receiver did not answer in HTTP"),
    ],
    ids=["no answer", "hung up"],
)
async def test_no_answer_is_a_failure(scene: Scene, said: Say, within_s: float, error: str) -> None:
    receiver = await scene.receiver(lambda _n, _: said)
    await announce(scene.started(retry_policy=RetryPolicy((0.0,)), timeout_s=within_s), receiver.url())
    letter = await scene.dead()
    assert (letter.reason, letter.error, letter.attempts, letter.status) == ("attempts", error, 2, 0)


async def test_nobody_there_is_a_failure(scene: Scene) -> None:
    async with Receiver().serving() as receiver:
        url = receiver.url()
    await announce(scene.started(), url)
    assert (await scene.dead()).error == "the receiver cannot be reached"


@pytest.mark.parametrize(
    "said",
    [
        Say(200, body=b"x" * 5_000_000),
        Say(200, (("content-length", "9"),)),
        Say(200, (("content-length", "9"),), stays_s=NEVER),
    ],
    ids=["much", "less", "never"],
)
async def test_what_is_answered_is_not_waited_for(scene: Scene, said: Say) -> None:
    receiver = await scene.receiver(lambda _n, _: said)
    await announce(scene.started(), receiver.url())
    await scene.nothing_left()
    assert (len(receiver.came), await scene.broker.dead(1)) == (1, [])


async def test_without_a_secret_nothing_is_sent(scene: Scene) -> None:
    receiver = await scene.receiver()
    webhooks = scene.started(retry_policy=RetryPolicy(()))
    await webhooks.announce(receiver.url(), "batch.completed", DATA, event_id="e", tenant="t2")
    assert "no secret to sign it with" in (await scene.dead()).error
    assert receiver.connections == 0


# -- where they may not go ---------------------------------------------------------------------------------


async def test_a_name_that_leads_elsewhere_by_the_time_of_delivery_is_not_called(scene: Scene) -> None:
    """DNS rebinding: public when the URL is given, inner network when the webhook goes out."""
    receiver = await scene.receiver()
    answers = [["8.8.8.8"], ["127.0.0.1"]]
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), 2) - 1]

    brief = RetryPolicy(life_ms=1_000)
    webhooks = scene.started(rebinding, gateway_webhooks_allow_private=False, retry_policy=brief)
    url = receiver.url("rebind.example.com")
    await webhooks.check(url, "t1")
    await announce(webhooks, url)
    letter = await scene.dead()
    assert (letter.reason, letter.attempts) == ("refused", 1)
    assert (receiver.connections, asked) == (0, ["rebind.example.com"] * 2)


@pytest.mark.parametrize("generous", [False, True])
@pytest.mark.parametrize(
    "addresses", [["169.254.169.254"], ["100.100.100.200"], ["::ffff:169.254.169.254"], ["8.8.8.8", "224.0.0.1"]]
)
async def test_a_name_that_leads_where_no_gateway_may_send_to_is_given_up_at_once(
    scene: Scene, addresses: list[str], generous: bool
) -> None:
    """By its author's will, it would keep its place among the outstanding ones for days."""
    resolver = names({"rebind.example.com": addresses})
    webhooks = scene.started(resolver, gateway_webhooks_allow_private=generous)
    await announce(webhooks, "http://rebind.example.com/")
    letter = await scene.dead()
    assert (letter.reason, letter.attempts) == ("refused", 1)


@pytest.mark.parametrize(
    "strict",
    [
        {"gateway_webhooks_allow_private": False},
        {"gateway_webhooks_allow_http": False},
        {"gateway_webhooks_ports": (443,)},
    ],
    ids=lambda strict: next(iter(strict)).removeprefix("gateway_webhooks_"),
)
async def test_a_gateway_that_forbids_a_target_leaves_it_to_another_one(scene: Scene, strict: dict[str, Any]) -> None:
    receiver = await scene.receiver()
    forbids = scene.started(**strict)
    for number in range(16):  # batches that another gateway accepted end at this one
        await announce(forbids, receiver.url(), f"batch_{number}.completed")

    async def handed_back() -> bool:
        return await scene.redis.zcard(f"{HOOKS}later") == 16

    await eventually(handed_back, 10, "all are postponed")
    assert not await scene.broker.dead(1)
    assert receiver.connections == 0
    scene.started()
    with structlog.testing.capture_logs() as log:
        await eventually(lambda: len(receiver.came) == 16, 60, "the other gateway delivers them")
    again = [line for line in log if line["event"] == "webhook_postponed"]
    assert len(again) <= 4, "a gateway that forbids them lets another one go first"
    await scene.nothing_left()
    assert not await scene.broker.dead(1)


async def test_a_target_that_was_left_to_others_often_enough_is_given_up(scene: Scene) -> None:
    receiver = await scene.receiver()
    other = scene.make()
    name = await announce(other, receiver.url())
    await other.stop()
    await scene.redis.hset(f"{HOOKS}tries", f"refused:{name}", MOST_REFUSALS)
    scene.started(gateway_webhooks_allow_private=False)
    letter = await scene.dead()
    assert (letter.reason, letter.attempts, receiver.connections) == ("refused", 1, 0)


async def test_a_name_is_looked_up_once_for_each_attempt_and_called_at_that_address(scene: Scene) -> None:
    """A second look-up, for the connection, could say something else than the first, for the check."""
    receiver = await scene.receiver(lambda n, _: Say(500) if n == 1 else Say())
    asked: list[str] = []
    webhooks = scene.started(names({"hooks.example.com": ["127.0.0.1"]}, asked))
    await announce(webhooks, receiver.url("hooks.example.com"))
    await scene.nothing_left()
    assert asked == ["hooks.example.com"] * 2
    assert [came.headers["host"] for came in receiver.came] == [f"hooks.example.com:{receiver.port}"] * 2


async def test_the_certificate_has_to_be_the_names(scene: Scene, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "hooks")
    pair = authority.issue("hooks.example.com")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.certificate, pair.key)
    receiver = await scene.stack.enter_async_context(Receiver().serving(server))
    found = names({name: ["127.0.0.1"] for name in ("hooks.example.com", "other.example.com")})
    trust = ssl.create_default_context(cafile=str(authority.file))
    webhooks = scene.started(found, trust, gateway_webhooks_allow_http=False, retry_policy=RetryPolicy(()))
    await announce(webhooks, receiver.url("hooks.example.com", "https"))
    await scene.nothing_left()
    assert len(receiver.came) == 1
    await announce(webhooks, receiver.url("other.example.com", "https"))
    assert (await scene.dead()).error.startswith("TLS failed: Hostname mismatch")
    assert len(receiver.came) == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://169.254.169.254/latest/meta-data", "may not be sent to"),
        ("https://metadata.example.com/", "may not be sent to"),
        ("https://both.example.com/", "may not be sent to"),
        ("https://nobody.example.com/", "may not be sent to"),
        ("http://public.example.com/", "must begin with https://"),
        ("https://public.example.com:22/", "must use port"),
    ],
)
async def test_a_callback_url_that_will_not_do_is_refused_when_it_is_given(scene: Scene, url: str, said: str) -> None:
    async def resolver(host: str, _port: int) -> Sequence[str]:
        if host == "nobody.example.com":
            raise NameUnknown
        return {"metadata.example.com": ["169.254.169.254"], "both.example.com": ["8.8.8.8", "::1"]}[host]

    webhooks = scene.make(
        resolver,
        gateway_webhooks_allow_private=False,
        gateway_webhooks_allow_http=False,
        gateway_webhooks_ports=(80, 443),
    )
    with pytest.raises(InvalidRequest, match=said) as caught:
        await webhooks.check(url, "t1")
    assert caught.value.param == "callback_url"
    await webhooks.stop()


async def test_a_callback_url_needs_a_secret_and_not_that_names_can_be_looked_up(scene: Scene) -> None:
    """Without a secret, no name is looked up."""
    asked: list[str] = []

    async def away(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        raise OSError

    webhooks = scene.make(away)
    await webhooks.check("https://hooks.example.com/", "t1")
    with pytest.raises(InvalidRequest, match="secret create --tenant t2") as caught:
        await webhooks.check("https://hooks.example.com/", "t2")
    assert (caught.value.code, asked) == ("no_webhook_secret", ["hooks.example.com"])
    await webhooks.stop()


async def test_names_of_the_inner_network_cannot_be_told_from_names_that_are_nobodys(scene: Scene) -> None:
    async def resolver(host: str, _port: int) -> Sequence[str]:
        if host == "nobody.internal":
            raise NameUnknown
        return {"db.internal": ["10.0.0.5"], "metadata.internal": ["169.254.169.254"], "empty.internal": []}[host]

    webhooks = scene.make(resolver, gateway_webhooks_allow_private=False)
    told = set()
    for host in ("db.internal", "metadata.internal", "empty.internal", "nobody.internal"):
        with pytest.raises(InvalidRequest) as caught:
            await webhooks.check(f"https://{host}:443/", "t1")
        told.add((caught.value.message, caught.value.code))
    assert len(told) == 1
    await webhooks.stop()


async def test_the_dead_receiver_of_one_tenant_leaves_room_for_others(scene: Scene) -> None:
    await scene.broker.set_secrets("t2", b"", encode_secrets([Secret(SECRET, 1)]))
    receiver = await scene.receiver(lambda _n, came: Say(500 if came.path == "/dead" else 200))
    webhooks = scene.started(gateway_webhooks_limit=8, retry_policy=RetryPolicy((NEVER,)))
    for number in range(2):
        await announce(webhooks, receiver.url(path="/dead"), f"e{number}")
    for number in range(2, 8):
        with pytest.raises(WebhooksFull, match="of this tenant"):
            await announce(webhooks, receiver.url(path="/dead"), f"e{number}")
    await webhooks.announce(receiver.url(path="/live"), "batch.completed", DATA, event_id="mine", tenant="t2")
    await eventually(lambda: "/live" in [came.path for came in receiver.came], what="the other's webhook comes")


async def test_what_cannot_be_sent_is_refused(scene: Scene) -> None:
    webhooks = scene.make(gateway_webhooks_limit=1)
    for event_type, data, param in (
        ("batch completed", DATA, "event_type"),
        ("batch.completed", {"x": "y" * MOST_BODY_BYTES}, "data"),
        ("batch.completed", {"x": float("nan")}, "data"),
        ("batch.completed", {"x": object()}, "data"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await webhooks.announce("https://example.com/", event_type, data, event_id="e", tenant="t1")
        assert caught.value.param == param
    await announce(webhooks, "https://example.com/", "e1")
    with pytest.raises(WebhooksFull):
        await announce(webhooks, "https://example.com/", "e2")
    await webhooks.stop()


# -- together, and at the end ------------------------------------------------------------------------------


async def test_a_slow_receiver_holds_up_no_others(scene: Scene) -> None:
    slow = await scene.receiver(lambda _n, _: Say(200, after_s=NEVER))
    fast = await scene.receiver()
    found = names({"slow.example.com": ["127.0.0.1"], "fast.example.com": ["127.0.0.1"]})
    webhooks = scene.make(found, limits=ConcurrencyLimits(together=16, per_host=2))
    for number in range(80):  # more than a gateway holds at once
        await announce(webhooks, slow.url("slow.example.com"), f"s{number}")
    for number in range(10):
        await announce(webhooks, fast.url("fast.example.com"), f"f{number}")
    webhooks.start()
    scene.stack.push_async_callback(webhooks.stop, 0.0)
    await eventually(lambda: len(fast.came) == 10, what="the fast one has all of its")
    assert slow.most == 2
    assert fast.most <= 2


async def test_what_has_waited_for_too_long_is_left_to_others(scene: Scene) -> None:
    """Begun late in its lease, an attempt would still be under way when another gateway takes it."""
    receiver = await scene.receiver(lambda _n, _: Say(after_s=3.0))
    clock = ClockAhead()
    webhooks = scene.started(clock=clock, limits=ConcurrencyLimits(per_host=1))
    for number in range(2):
        await announce(webhooks, receiver.url(), f"e{number}")
    await scene.both_taken(receiver)
    clock.ahead_s = 31.0

    async def handed_back() -> list[Any]:
        return list(await scene.redis.zrange(f"{HOOKS}later", 0, -1, withscores=True))

    ((_, due_ms),) = await eventually(handed_back, 20, "it was handed back")
    assert float(due_ms) > await scene.broker.now_ms()
    assert "0" in (await scene.redis.hvals(f"{HOOKS}tries"))
    assert len(receiver.came) == 1


async def test_who_stops_hands_back_at_once_what_it_holds(scene: Scene) -> None:
    receiver = await scene.receiver(lambda n, _: Say(after_s=NEVER if n == 1 else 0.0))
    leaving = scene.make(limits=ConcurrencyLimits(per_host=1))
    leaving.start()
    first, second = await announce(leaving, receiver.url(), "e1"), await announce(leaving, receiver.url(), "e2")
    await scene.both_taken(receiver)
    await leaving.stop(0.0)
    assert sorted((await scene.redis.hgetall(f"{HOOKS}tries")).values()) == ["0", "0"], "none of it counts"
    scene.started()
    await scene.nothing_left()
    assert sorted(came.id for came in receiver.came[1:]) == sorted([first, second])


async def test_who_stops_finishes_what_it_can(scene: Scene) -> None:
    receiver = await scene.receiver(lambda _n, _: Say(after_s=0.2))
    leaving = scene.make()
    leaving.start()
    await announce(leaving, receiver.url())
    await eventually(lambda: receiver.came, what="it is being sent")
    await leaving.stop(5.0)
    await scene.nothing_left()
    assert len(receiver.came) == 1


@contextmanager
def doomed_gateway(url: str) -> Iterator[None]:
    """A process that delivers, until it is killed."""
    settings = {
        f"STREAMFLEET_{name.upper()}": ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in LOCAL.items()
    }
    command = ["tests.integration.webhook_process", url]
    process = ForkedProcess(command, {**os.environ, **settings}, Path(os.devnull))
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def test_what_a_killed_gateway_was_sending_another_one_sends(scene: Scene) -> None:
    receiver = await scene.receiver(lambda n, _: Say(after_s=NEVER if n == 1 else 0.0))
    announcing = scene.make()
    with doomed_gateway(scene.url):
        name = await announce(announcing, receiver.url())
        await eventually(lambda: receiver.came, 20, "it is being sent")
    await announcing.stop()
    scene.started(lease_ms=3_000, timeout_s=1)
    await scene.nothing_left()
    assert [came.id for came in receiver.came] == [name, name], "a receiver knows it again"


async def test_logs_tell_neither_urls_nor_secrets(scene: Scene) -> None:
    receiver = await scene.receiver(lambda n, _: Say([500, 410][n % 2]))
    with structlog.testing.capture_logs() as events:
        await announce(scene.started(), receiver.url(path="/s3cret-path?token=s3cret"))
        await scene.dead()
    assert {event["event"] for event in events} >= {"webhook_dead"}
    told = json.dumps(events, default=str)
    assert "s3cret" not in told
    assert SECRET not in told
