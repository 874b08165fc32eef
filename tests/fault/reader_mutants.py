"""A gateway with one guard of its streams taken out: `python -m tests.fault.reader_mutants NAME gateway`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

from streamfleet.cli.main import main
from streamfleet.common.message_events import STOP
from streamfleet.common.protocol import MESSAGES
from streamfleet.gateway import streaming
from streamfleet.gateway.errors import ApiError
from streamfleet.gateway.framing import Framing, frame
from streamfleet.producer.client import Client
from streamfleet.producer.events import Chunk, Event, Restarted
from streamfleet.producer.follower import _Seam
from tests.integration.gateway_process import GatewayProcess


def restarts_are_not_told() -> None:
    """A reader gets the text of two runs."""
    encode = streaming.encode_events

    def telling_none(events: Any, *rest: Any, **more: Any) -> Any:
        return encode([event for event in events if not isinstance(event, Restarted)], *rest, **more)

    streaming.encode_events = telling_none


def resumed_from_the_beginning() -> None:
    """A reader that comes back gets again what it has."""
    reading = Client.reading

    def from_the_beginning(client: Client, handle: Any, _: str | None, **more: Any) -> Any:
        return reading(client, handle, None, **more)

    Client.reading = from_the_beginning  # type: ignore[method-assign,assignment]


def one_event_too_many_is_skipped() -> None:
    """A number has one event fewer behind it than it should."""
    opened = streaming.open_stream

    async def skipping(given: streaming.Reading) -> Any:
        after = given.after + 1 if isinstance(given.after, int) else given.after
        return await opened(dataclasses.replace(given, after=after))

    streaming.open_stream = skipping  # type: ignore[assignment]


def a_run_that_goes_on_is_not_joined() -> None:
    """A reader gets the beginning of a message twice."""

    def joined(self: _Seam, chunk: Chunk) -> list[Event]:
        self.over = True
        return [chunk]

    _Seam.add = joined  # type: ignore[method-assign]


def a_restart_is_told_as_an_end() -> None:
    """A reader takes a part of a message for the whole."""
    told = Framing.error

    def ended(self: Framing, error: ApiError) -> bytes:
        return frame({"type": STOP}, event=STOP) if self.endpoint == MESSAGES else told(self, error)

    Framing.error = ended  # type: ignore[method-assign]


MUTANTS: dict[str, tuple[Callable[[], None], list[str], str]] = {
    each.__name__: (each, kinds, expected)
    for each, kinds, expected in (
        (restarts_are_not_told, ["worker"], "the result"),
        (resumed_from_the_beginning, ["gateway"], "the result"),
        (one_event_too_many_is_skipped, ["gateway"], "came after"),
        (a_run_that_goes_on_is_not_joined, ["worker"], "events came as"),
        (a_restart_is_told_as_an_end, ["worker"], "events came as"),
    )
}
"""By name: the change, the kinds of processes to kill, and a piece of what the judge must say."""


def gateway_with(mutant: str) -> type[GatewayProcess]:
    """Returns the class of gateways that lack this guard."""

    class Mutant(GatewayProcess):
        def command(self) -> list[str]:
            return ["tests.fault.reader_mutants", mutant, "gateway"]

    return Mutant


if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)][0]()
    main()
