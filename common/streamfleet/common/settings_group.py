"""Base of all groups of settings: the names of their variables, and the sources of their values."""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

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
