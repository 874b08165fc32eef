"""A password that changes while a fleet runs: on its servers, and in the files that its processes read."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.connection import parse_url

USERS = ("", "fleet")
"""Who logs in: `default`, whose password is requirepass, and a user of the ACL."""
ORDERS = ("before", "with", "after")
"""When the files change: some time before the servers, with them, some time after."""


class Passwords:
    """The password of a fleet. Servers and files have none before the first change.

    Args:
        folder: where the files are.

    Attributes:
        password: what the servers want of both users.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.password, self._login = folder, "", ""
        self._files: dict[Path, str] = {}

    def file(self, url: str, name: str = "redis") -> Path:
        """A file with this URL and the login of the moment, from now on."""
        path = self._folder / f"{name}.url"
        self._files[path] = url
        self._write(path)
        return path

    async def change(
        self, order: str, user: str, late_s: float, tell: Callable[[str], Awaitable[None]], *, none: bool = False
    ) -> None:
        """Change the password, and the user who logs in.

        Args:
            order: one of ORDERS.
            user: one of USERS.
            late_s: time between servers and files, where they do not change together.
            tell: has the servers want the new password; it gets the old one.
            none: from now on there is none.
        """
        new = "" if none else secrets.token_hex(8)
        login = f"{user}:{new}@" if new else ""
        if order == "before":
            self._write_all(login)
            await asyncio.sleep(late_s)
        old, self.password = self.password, new
        await tell(old)
        if order == "after":
            await asyncio.sleep(late_s)
        self._write_all(login)

    async def tell(self, port: int, old: str) -> None:
        """Have a server want the password, and cut all its connections, as managed services do."""
        async with admin_of(port, old) as admin:
            await self.set_on(admin)
            await cut(admin)

    async def set_on(self, admin: Any) -> None:
        """Have a server want the password from whoever connects from now on."""
        secret = f">{self.password}" if self.password else "nopass"
        await admin.execute_command("ACL", "SETUSER", "fleet", "on", "resetpass", secret, "~*", "&*", "+@all")
        await admin.config_set("requirepass", self.password)

    async def refused(self, port: int) -> int:
        """How many logins and commands a server has refused since it started."""
        async with admin_of(port, self.password) as admin:
            return await refused(admin)

    def current(self, url: str) -> str:
        """The URL with the login that the servers want now."""
        return url.replace("//", f"//:{self.password}@", 1) if self.password else url

    def _write_all(self, login: str) -> None:
        self._login = login  # also of files that are made from now on, and of none before
        for path in self._files:
            self._write(path)

    def _write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(self._files[path].replace("//", f"//{self._login}", 1) + "\n")
        new.replace(path)


class Credentials(redis.CredentialProvider):
    """Of a URL as it is when a connection is opened, for clients of redis-py."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def get_credentials(self) -> tuple[str, str]:
        found = parse_url(self._read().strip())
        # A server without a password takes any.
        return found.get("username") or "default", found.get("password") or "none"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


def admin_of(port: int, password: str) -> redis.asyncio.Redis:
    """A client for one server; a context manager."""
    return redis.asyncio.Redis(port=port, password=password or None, decode_responses=True)


async def cut(admin: Any) -> None:
    """Cut all connections of clients but this one."""
    for kind in ("normal", "pubsub"):
        await admin.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


async def refused(admin: Any) -> int:
    """How many logins and commands a server has refused since it started, or was told to count anew."""
    counted = await admin.info("errorstats")
    return sum(int(counted.get(f"errorstat_{code}", {}).get("count", 0)) for code in ("WRONGPASS", "NOAUTH"))
