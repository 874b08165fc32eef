"""Settings that clients read: base of all groups, loading of one group, and the queue's group.

A client loads this module alone; `streamfleet.common.settings` has the other groups, and these names too.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Any, Self, TypeVar

from pydantic import (
    AliasChoices,
    Field,
    ImportString,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from streamfleet.common.errors import InvalidRequest, SettingsError
from streamfleet.common.keys import check_prefix
from streamfleet.common.limits import QueueLimits, SharedLimits
from streamfleet.common.protocol import check_name
from streamfleet.common.secret_files import SecretFiles

PREFIX = "STREAMFLEET_"
LARGEST_NUMBER = 10**15


def known_as(field: str, well_known: str) -> AliasChoices:
    """Names of a field that a well-known variable sets as well."""
    return AliasChoices(f"{PREFIX}{field}", well_known, field.lower())


class Group(BaseSettings):
    """Base of the groups."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True
    )

    @field_validator("*")
    @classmethod
    def _within_what_redis_counts(cls, value: Any) -> Any:
        """Refuse larger numbers, with which Redis would fail a script's PEXPIRE or XADD halfway through."""
        if isinstance(value, (int, float)) and value > LARGEST_NUMBER:
            raise ValueError(f"must be at most {LARGEST_NUMBER}")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, SecretFiles(settings_cls, PREFIX)


class QueueSettings(Group, SharedLimits):  # type: ignore[misc] # frozen too, by the configuration of Group
    """The queue, and the limits of all its requests."""

    redis_url: SecretStr = Field(
        SecretStr("redis://localhost:6379/0"),
        validation_alias=known_as("REDIS_URL", "REDIS_URL"),
        description="Address of Redis: redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://.",
    )
    redis_credentials: ImportString[Any] | None = Field(
        None,
        description=(
            "module:object of a redis-py CredentialProvider: each new connection asks it if REDIS_URL has no password."
        ),
    )
    queue: str = Field("default", description="Name of the queue: one pool of interchangeable workers.")
    key_prefix: str = Field("", description="Put before every key, for a Redis that others share.")

    @field_validator("redis_credentials", mode="wrap")
    @classmethod
    def _usable_provider(cls, value: Any, load: ValidatorFunctionWrapHandler) -> Any:
        try:
            value = load(value)
        except ValidationError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the module does
            raise ValueError(f"cannot be imported: {type(error).__name__}: {error}") from None
        if value is not None and (isinstance(value, type) or not callable(getattr(value, "get_credentials", None))):
            raise ValueError("must name a CredentialProvider as module:object, no class of them")
        return value

    @field_validator("queue")
    @classmethod
    def _usable_queue(cls, value: str) -> str:
        try:
            return check_name(value, "queue", forbidden="{}")
        except InvalidRequest as error:
            raise ValueError(error.message) from None

    @field_validator("key_prefix")
    @classmethod
    def _usable_prefix(cls, value: str) -> str:
        try:
            return check_prefix(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from None

    @model_validator(mode="after")
    def _lanes_hold_a_request(self) -> Self:
        if self.lane_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"STREAMFLEET_LANE_BYTES is {self.lane_bytes}: it must be at least twice STREAMFLEET_MAX_BODY_BYTES "
                f"({self.max_body_bytes}), or the largest requests would never find room"
            )
        return self

    def limits(self) -> QueueLimits:
        """The limits of the queue as brokers need them."""
        return QueueLimits(**{each.name: getattr(self, each.name) for each in fields(SharedLimits)})


G = TypeVar("G", bound=Group)


def variable(name: str) -> str:
    """The environment variable that sets a field."""
    return f"{PREFIX}{name.upper()}"


def load(group: type[G], **given: Any) -> G:
    """Load a group from the environment; given values that are not None take precedence.

    Raises:
        SettingsError: one line for each setting that is wrong.
    """
    values = {name: value for name, value in given.items() if value is not None}
    try:
        return group(**values)
    except ValidationError as error:
        lines: dict[object, str] = {}
        for item in error.errors(include_url=False):  # a list has one error per wrong item; the first is enough
            lines.setdefault(item["loc"][:1], _line(group, dict(item)))
        raise SettingsError("\n".join(lines.values())) from None


def _line(group: type[Group], item: dict[str, Any]) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:
        return message
    name = str(item["loc"][0])
    field = group.model_fields.get(name.lower().removeprefix(PREFIX.lower()))
    shown = (
        "" if field is None or field.annotation is SecretStr else f", not {json.dumps(item['input'], default=str)[:80]}"
    )
    return f"{_set_by(field, name)}: {message}{shown}"


def _set_by(field: FieldInfo | None, name: str) -> str:
    """The variable that a value came from, or would come from."""
    alias = field.validation_alias if field else None
    names = [choice for choice in alias.choices if choice in os.environ] if isinstance(alias, AliasChoices) else []
    return str(names[0]) if names else name if name.isupper() else variable(name)
