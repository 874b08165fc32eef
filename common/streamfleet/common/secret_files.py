"""Reads secrets from files that variables such as ``REDIS_URL_FILE`` name, as Kubernetes and Docker mount them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from streamfleet.common.errors import SettingsError

SUFFIX = "_FILE"
MOST_BYTES = 65_536
ONE_LINE = "must be one line, without control characters, and without spaces around it"


def file_variables(name: str, field: FieldInfo, prefix: str) -> list[str]:
    """Environment variables that name a file with a field's value, by priority; empty for a field that is no secret."""
    if field.annotation is not SecretStr:
        return []
    alias = field.validation_alias
    names = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [prefix + name.upper()]
    return [each + SUFFIX for each in names if each.isupper()]


def is_one_line(value: str) -> bool:
    """True if a value fits an HTTP header: an error of httpx about one that does not fit would show the secret."""
    return value == value.strip() and not any(each < " " or each == "\x7f" for each in value)


class FileSecret(SecretStr):
    """A secret from a file, which `get_secret_value` reads again: it may have changed since the start.

    A file that is gone, empty, unreadable or not one line for the moment has its last value.

    Attributes:
        at_start: its first value.
    """

    def __init__(self, variable: str, path: str) -> None:
        self._source, self.at_start = (variable, path), _read(variable, path)
        super().__init__(self.at_start)

    def get_secret_value(self) -> str:
        with contextlib.suppress(SettingsError):
            self._secret_value = _read(*self._source) or self._secret_value
        return self._secret_value


class MountedLogin:
    """Redis's user and password in the files `username` and `password` of a folder, for `redis_credentials`.

    Without the file `username`, the login is a password alone.

    Attributes:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_credentials(self) -> tuple[str, ...]:
        """Returns user and password as they are now, or the password alone. Raises OSError, UnicodeDecodeError."""
        user, password = self.folder / "username", self.folder / "password"
        given = (user, password) if user.exists() else (password,)
        return tuple(file.read_text(encoding="utf-8").strip() for file in given)


mounted_login = MountedLogin(Path("/etc/streamfleet/redis"))
"""The login of pods whose Secret has no URL (`redis.outside.url` of the chart)."""


class SecretFiles(PydanticBaseSettingsSource):
    """Source of secret settings: reads their values from the files that the environment names.

    Raises:
        SettingsError: a file cannot be read, or the value is in the environment as well. The message never contains the
            value.
    """

    def __init__(self, settings: type[BaseSettings], prefix: str) -> None:
        super().__init__(settings)
        self._prefix = prefix

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        for variable in file_variables(field_name, field, self._prefix):
            if path := os.environ.get(variable):
                return FileSecret(variable, path), field_name, False
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        found = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in found.items() if value is not None}


def _read(variable: str, path: str) -> str:
    direct = variable.removesuffix(SUFFIX)
    if os.environ.get(direct):
        raise SettingsError(f"{variable}: {direct} is set too, and only one of them can count: remove one")
    try:
        with Path(path).open("rb") as file:
            value = file.read(MOST_BYTES).decode().strip()
    except OSError as error:
        raise SettingsError(f"{variable}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{variable}: {path} is not text") from None
    if not is_one_line(value):
        raise SettingsError(f"{variable}: {path} {ONE_LINE}")
    return value
