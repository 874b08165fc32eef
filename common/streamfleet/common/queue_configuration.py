"""The queue's configuration: settings that all its workers and clients share, as the hash `{q}:meta` holds them. Pure.

It also holds the number of the queue's protocol, which the first worker writes and everybody checks.
Fields have the names of the settings, values are text as in the environment, and each is checked by the rules of its
setting. A worker writes what the hash lacks, out of its environment; from then on the hash counts, not the environment.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from pydantic_settings import PydanticBaseSettingsSource

from streamfleet.common.errors import InvalidRequest, UnknownProtocol
from streamfleet.common.limits import QueueLimits, SharedLimits, Use, marked
from streamfleet.common.settings_queue import QueueSettings, load, variable

OF_CLIENTS = marked(Use.CLIENTS)
NAMES = tuple(each.name for each in dataclasses.fields(SharedLimits) if each.name not in marked(Use.PROCESS))
"""All settings of the configuration."""
PROTOCOL = "protocol"
PROTOCOLS = range(1, 2)
"""Protocols that this version knows. A worker writes the last of them where the queue has none."""


@functools.cache  # to build the class takes 15 ms, and only a queue with a configuration needs it
def _given() -> type[QueueSettings]:
    """Class of settings without an environment: a value that is not given has its default."""

    class Given(QueueSettings):  # type: ignore[misc] # frozen too
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: Any,  # noqa: ARG003 - the signature is pydantic's
            init_settings: PydanticBaseSettingsSource,
            *_: Any,
            **__: Any,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings,)

    return Given


def encode(limits: QueueLimits) -> dict[str, str]:
    """The limits as fields of the configuration."""
    return {name: _text(getattr(limits, name)) for name in NAMES}


def decode(limits: QueueLimits, fields: Mapping[str, str]) -> QueueLimits:
    """The limits with the values of these fields; fields with other names are passed over.

    Raises:
        SettingsError: one line for each value that breaks the rules of its setting, with the setting's name.
    """
    known = {name: value for name, value in fields.items() if name in NAMES}
    return dataclasses.replace(limits, **load(_given(), **encode(limits) | known).model_dump(include=set(NAMES)))


def check_protocol(fields: Mapping[str, str], queue: str) -> None:
    """Check the queue's protocol. A queue without a number passes: no worker has served it yet.

    Raises:
        UnknownProtocol: this version does not know it.
    """
    number = fields.get(PROTOCOL)
    if number is not None and number not in map(str, PROTOCOLS):
        known = " to ".join(dict.fromkeys([str(PROTOCOLS[0]), str(PROTOCOLS[-1])]))
        raise UnknownProtocol(
            f"queue {queue} has protocol {number[:20]!r}, and this version of streamfleet knows {known}: use a version "
            "that knows the queue's, or another queue (STREAMFLEET_QUEUE)"
        )


def lacks(fields: Mapping[str, str]) -> bool:
    """True if a worker has to write a part of the configuration: the queue is new, or Redis lost it."""
    return any(name not in fields for name in (PROTOCOL, *NAMES) if name not in OF_CLIENTS)


def said(settings: QueueSettings) -> dict[str, str]:
    """The part of the configuration that the environment or an option names, as opposed to defaults."""
    return {name: _text(getattr(settings, name)) for name in NAMES if name in settings.model_fields_set}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Values that differ, by name: before and after; only of names that both have."""
    return {name: (value, after[name]) for name, value in before.items() if name in after and after[name] != value}


def assignments(words: list[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` words; the name may be that of the environment variable.

    Raises:
        InvalidRequest: a word is no assignment, or no setting of the configuration has its name.
    """
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        known = next((each for each in NAMES if name in (each, variable(each))), "")
        if not (known and equals and value):
            import difflib

            near = next(iter(difflib.get_close_matches(name.lower(), NAMES, n=1)), "")
            hint = f"; did you mean {near}?" if near else ""
            unknown = f"not a setting of the queue, which has {', '.join(NAMES)}{hint}"
            raise InvalidRequest("write NAME=VALUE" if known else unknown, word)
        values[known] = value
    return values


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
