"""Redis URLs, read without connecting: the kind of deployment, its hosts, and an address that may be shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, quote, urlencode

Host = tuple[str, int]
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]*)(?::([0-9]+))?(/[0-9]*)?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?")
_HOSTS = re.compile(rf"{_HOST.pattern}(?:,{_HOST.pattern})*((?:/[\w.-]*){{0,2}})")
_DATABASE = re.compile(r"/?([0-9]{1,10}/?)?")
_SERVICE = re.compile(r"[\w.-]+")
ESCAPES = "in a user name or password write / ? # @ : as %2F %3F %23 %40 %3A"
_RIGHT = (
    "write redis://host:6379/0 (rediss:// for TLS), unix:///path, redis+sentinel://host:26379,host:26379/service/0 "
    "or redis+cluster://host:6379,host:6379"
)
NOT_AN_ADDRESS = "(not an address)"


class Kind(StrEnum):
    """Kind of deployment that a URL names."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_MANY = {Kind.SENTINEL: 26379, Kind.CLUSTER: 6379}
_KIND_OF = {
    "redis": Kind.SINGLE,
    "rediss": Kind.SINGLE,
    "unix": Kind.SINGLE,
    "redis+sentinel": Kind.SENTINEL,
    "rediss+sentinel": Kind.SENTINEL,
    "redis+cluster": Kind.CLUSTER,
    "rediss+cluster": Kind.CLUSTER,
}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed URL.

    Attributes:
        kind: one server, Sentinel or cluster.
        hosts: Sentinels or cluster nodes; empty for a single server.
        service: the master's name at the Sentinels; empty elsewhere.
    """

    kind: Kind
    hosts: tuple[Host, ...] = ()
    service: str = ""
    text: str = field(default="", repr=False)
    scheme: str = "redis"  # of one server
    user: str = field(default="", repr=False)
    path: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def tls(self) -> bool:
        """True if the connections are encrypted."""
        return self.scheme == "rediss"

    def server_url(self, host: str = "", port: int = 0) -> str:
        """URL of one Redis server of this deployment, as redis-py takes it. It holds the password."""
        if self.kind is Kind.SINGLE:
            return self.text
        options = [(name, value) for name, value in self.options if not name.startswith("sentinel_")]
        return _url(self.scheme, self.user, host, port, self.path, options)

    def sentinel_url(self, host: str, port: int) -> str:
        """URL of one Sentinel, as redis-py takes it: with its own user and password, and the same TLS options."""
        given = dict(self.options)
        name, password = given.get("sentinel_username", ""), given.get("sentinel_password", "")
        user = f"{quote(name, safe='')}:{quote(password, safe='')}@" if name or password else ""
        options = [(name, value) for name, value in self.options if name.startswith("ssl_")]
        return _url(self.scheme, user, host, port, "", options)


def read_url(url: str) -> RedisUrl:
    """Parse a URL.

    Raises:
        ValueError: the URL is invalid; the message tells the right form, and does not contain the URL.
    """
    scheme, found, rest = url.partition("://")
    kind = _KIND_OF.get(scheme) if found else None
    if kind is None:
        raise ValueError(f"no such kind of address: {_RIGHT}")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if kind is Kind.SINGLE:
        if "," in authority.rpartition("@")[2] and scheme != "unix":
            raise ValueError("several hosts are for redis+sentinel://host,host/service or redis+cluster://host,host")
        _check_path(scheme, rest[len(authority) :])
        return RedisUrl(kind, text=url, scheme=scheme)
    path, _, query = rest[len(authority) :].partition("?")
    user, at, hosts = authority.rpartition("@")
    if "#" in query or "@" in path or "#" in path:
        raise ValueError(ESCAPES)
    service, path = _service_and_path(kind, path)
    return RedisUrl(
        kind,
        hosts=tuple(_host(text, _MANY[kind]) for text in hosts.split(",")),
        service=service,
        text=url,
        scheme=scheme.partition("+")[0],
        user=user + at,
        path=path,
        options=tuple(parse_qsl(query, keep_blank_values=True)),
    )


def safe_address(url: str) -> str:
    """The URL's address without user and password, for messages; never raises, whatever the URL contains."""
    scheme, found, rest = url.partition("://")
    several = _MANY.get(_KIND_OF.get(scheme, Kind.SINGLE))
    pattern = _HOSTS if several else _ADDRESS
    address, _, query = rest.partition("?")
    if "@" in address and "@" in query:
        return NOT_AN_ADDRESS  # it is unknown which @ ends the password
    # A URL parser may end an unescaped password too early, so the last @ decides.
    if "@" in rest and ("@" in address or address.startswith(":") or not pattern.fullmatch(address)):
        address = rest.rpartition("@")[2].partition("?")[0]
    if scheme == "unix":
        return address
    match = pattern.fullmatch(address)
    if not found or match is None:
        return NOT_AN_ADDRESS
    if several is None:
        host, port, path = match.groups()
        return f"{scheme}://{host or 'localhost'}:{port or 6379}{path or ''}"
    hosts, slash, path = address.partition("/")
    shown = (_HOST.fullmatch(text) for text in hosts.split(","))
    return f"{scheme}://{','.join(f'{m[1]}:{m[2] or several}' for m in shown if m)}{slash}{path}"


def why_unusable(error: Exception) -> str:
    """Message for an error from reading a URL; it replaces a text that may hold a part of the password."""
    if str(error).startswith("Port"):
        return f"the port is not a number; {ESCAPES}"
    return str(error)


def _check_path(scheme: str, rest: str) -> None:
    """Check what is behind the host of a single server: redis-py ignores a path that is no number."""
    path = re.split(r"[?#]", rest, maxsplit=1)[0]
    if scheme != "unix" and not _DATABASE.fullmatch(path):
        if "@" in path:
            raise ValueError(ESCAPES)
        raise ValueError("the path must be the number of a database, as in redis://host:6379/0")


def _service_and_path(kind: Kind, path: str) -> tuple[str, str]:
    parts = path.strip("/").split("/")
    if kind is Kind.CLUSTER:
        if parts not in ([""], ["0"]):
            raise ValueError("a cluster has no databases but 0: leave the path out")
        return "", ""
    service, db = parts[0], parts[1] if len(parts) == 2 else ""
    if not _SERVICE.fullmatch(service) or len(parts) > 2 or (db and not db.isdecimal()):
        raise ValueError(
            "name the service that the Sentinels watch, and perhaps a database, behind the hosts: "
            "redis+sentinel://host:26379,host:26379/mymaster/0"
        )
    return service, f"/{db}" if db else ""


def _host(text: str, usual_port: int) -> Host:
    match = _HOST.fullmatch(text)
    port = int(match[2] or usual_port) if match else 0
    if match is None or not 0 < port < 65_536:
        raise ValueError(f"its hosts must be a list like host:{usual_port},host:{usual_port}; {ESCAPES}")
    return match[1].strip("[]"), port


def _url(scheme: str, user: str, host: str, port: int, path: str, options: list[tuple[str, str]]) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{user}{shown}:{port}{path}" + (f"?{urlencode(options)}" if options else "")
