"""Options behind the ? of a Redis URL: those of redis-py that work here, their values, and why others are refused.

redis-py takes every argument of its connections from a URL, most of them unchecked. Some change replies or time-outs
that streamfleet relies on, some end in an error far away from the URL. `check` refuses these before the first command.

TLS has default options, checks of those that a URL names, and a message for a refused certificate.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from streamfleet.common.connection.urls import ESCAPES, Kind, RedisUrl

Check = Callable[[str], str]
"""Returns the mistake of a value; empty for none."""


def _whole(least: int, most: int) -> Check:
    said = f"must be a whole number from {least} to {most}"
    return lambda value: "" if _digits(value) and least <= int(value) <= most else said


def _digits(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 12


def _one_of(*known: str) -> Check:
    return lambda value: "" if value in known else f"must be {' or '.join(known)}"


def _seconds(value: str) -> str:
    try:
        return "" if 0 < float(value) < math.inf else "must be above 0"
    except ValueError:
        return "must be a number of seconds"


def _word(value: str) -> str:
    fine = value and value.isascii() and value.isprintable() and " " not in value
    return "" if fine else "must be a word of ASCII characters, without blanks"


def _text(_: str) -> str:
    return ""


def _file(path: str) -> str:
    try:
        with Path(path).open("rb"):
            return ""
    except (OSError, ValueError) as error:
        return f"names {path!r}, which cannot be read: {getattr(error, 'strerror', error)}"


def _folder(path: str) -> str:
    return "" if Path(path).is_dir() else f"names {path!r}, which is no folder"


def _verify_flags(value: str) -> str:
    known = {flag.strip(" []") for flag in value.split(",")} <= {*ssl.VerifyFlags.__members__}
    return "" if known else "must be a list of names such as VERIFY_X509_STRICT"


def _flag(value: str) -> str:
    return "" if value.lower() in _FLAGS else "must be true or false"


_FLAGS = frozenset({"1", "0", "true", "false", "yes", "no", "t", "f", "y", "n"})
_WORK: Mapping[str, Check] = {
    "client_name": _word,
    "db": _whole(0, 2**31 - 1),
    "encoding": _one_of("utf-8", "UTF-8"),
    "encoding_errors": _one_of("strict"),
    "health_check_interval": _whole(0, 86_400),
    "lib_name": _word,
    "lib_version": _word,
    "max_connections": _whole(1, 10_000),
    "password": _text,
    "protocol": _one_of("2"),
    "socket_connect_timeout": _seconds,
    "socket_keepalive": _flag,
    "socket_read_size": _whole(1, 2**30),
    "username": _text,
}
_TLS: Mapping[str, Check] = {
    "ssl_ca_certs": _file,
    "ssl_ca_data": _text,
    "ssl_ca_path": _folder,
    "ssl_cert_reqs": _one_of("none", "optional", "required"),
    "ssl_certfile": _file,
    "ssl_check_hostname": _flag,
    "ssl_ciphers": _text,
    "ssl_exclude_verify_flags": _verify_flags,
    "ssl_include_verify_flags": _verify_flags,
    "ssl_keyfile": _file,
    "ssl_min_version": _one_of("769", "770", "771", "772"),
    "ssl_password": _text,
}
_SENTINEL: Mapping[str, Check] = {"sentinel_username": _text, "sentinel_password": _text}
_OWN_TIMES = "streamfleet has time-outs of its own, which blocking reads need"
_OWN_RETRIES = "streamfleet tries again by itself, where nothing can be sent twice"
_BEFORE = "write it before the ?"
_REFUSED: Mapping[str, str] = {
    "decode_responses": "streamfleet reads replies as bytes",
    "legacy_responses": "streamfleet reads replies as the server sends them",
    "socket_timeout": _OWN_TIMES,
    "timeout": _OWN_TIMES,
    "retry": _OWN_RETRIES,
    "retry_on_error": _OWN_RETRIES,
    "retry_on_timeout": _OWN_RETRIES,
    "host": _BEFORE,
    "path": _BEFORE,
    "port": _BEFORE,
}


def check(url: RedisUrl) -> None:
    """Check the options of a URL.

    Raises:
        ValueError: an option does not work, or its value is wrong; the message names it in one line. It does not where
            an @ stands behind the ?, because the apparent option may be part of the password.
    """
    query = url.text.partition("?")[2].partition("#")[0]
    given = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in given]
    mistakes = [f"the option {name} is there twice" for name in names if names.count(name) > 1]
    mistakes += filter(None, (_mistake(url, name, value) for name, value in given))
    if not mistakes and url.tls and (mistake := _tls_mistake(dict(given))):
        mistakes.append(f"the option {mistake}")
    if mistakes and "@" in query:
        raise ValueError(f"behind the ? stands an option that there is not: no option of this name; {ESCAPES}")
    if mistakes:
        raise ValueError(mistakes[0])


def _mistake(url: RedisUrl, name: str, value: str) -> str:
    check_value = _checks(url).get(name)
    if check_value is None:
        return _why_not(name)
    if not value and check_value is not _text:
        return f"the option {name} has no value"
    wrong = check_value(value)
    return f"the option {name} {wrong}" if wrong else ""


def _checks(url: RedisUrl) -> Mapping[str, Check]:
    checks = dict(_WORK)
    if url.tls:
        checks |= _TLS
    if url.kind is Kind.SENTINEL:
        checks |= _SENTINEL
    if url.kind is Kind.CLUSTER:
        checks["db"] = _one_of("0")
    if url.scheme == "unix":
        del checks["socket_keepalive"]
    return checks


def _why_not(name: str) -> str:
    if why := _REFUSED.get(name):
        return f"the option {name} is refused, leave it out: {why}"
    places = {**dict.fromkeys(_TLS, "rediss://"), **dict.fromkeys(_SENTINEL, "redis+sentinel://")}
    places["socket_keepalive"] = "connections over TCP"
    if name in places:
        return f"the option {name} is for {places[name]}"
    return f"behind the ? stands an option that there is not: no option {name[:40]!r}"


def tls_options(url: str) -> dict[str, bool]:
    """Default TLS options; a URL may override them. redis-py before 6.0 would not check the host name."""
    return {"ssl_check_hostname": True} if url.startswith("rediss://") else {}


def _tls_mistake(given: Mapping[str, str]) -> str:
    """Name and mistake of the first TLS option of a URL that cannot be used; empty for none.

    In use, the error would look like an unreachable server.
    """
    if "ssl_keyfile" in given and "ssl_certfile" not in given:
        return "ssl_keyfile needs ssl_certfile"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Without a password, OpenSSL would ask for one on the terminal.
    chain = (given.get("ssl_keyfile"), given.get("ssl_password", ""))
    uses: dict[str, Callable[[str], object]] = {
        "ssl_ca_certs": lambda value: context.load_verify_locations(cafile=value),
        "ssl_ca_data": lambda value: context.load_verify_locations(cadata=value),
        "ssl_certfile": lambda value: context.load_cert_chain(value, *chain),
        "ssl_ciphers": context.set_ciphers,
    }
    for name, use in uses.items():
        try:
            if given.get(name):
                use(given[name])
        except (OSError, TypeError, ValueError) as error:
            return f"{name} cannot be used: {error}"
    return ""


def distrust(error: BaseException) -> str | None:
    """Message for a server whose certificate this side refused; None for any other error."""
    seen: BaseException | None = error
    for _ in range(5):
        if isinstance(seen, ssl.SSLCertVerificationError):
            return (
                f"the server's certificate is refused: {seen.verify_message.rstrip('.')}. Name the authority that "
                "signed it with ?ssl_ca_certs=FILE, and use a host name that it was issued for"
            )
        seen = seen and (seen.__cause__ or seen.__context__)
    return None
