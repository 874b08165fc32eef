"""TLS: default options, checks of the files that a URL names, and the message for a refused certificate."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import parse_qsl

_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def tls_options(url: str) -> dict[str, bool]:
    """Default TLS options; a URL may override them. redis-py before 6.0 would not check the host name."""
    return {"ssl_check_hostname": True} if url.startswith("rediss://") else {}


def check_tls_files(url: str) -> None:
    """Check before the first command that the files can be read; later the error would look like an unreachable server.

    Raises:
        ValueError: a file cannot be read; the message names option and file.
    """
    query = url.partition("?")[2]
    if not url.startswith("rediss://") or "@" in query:
        return  # with an @ after the ?, the apparent option may be part of the password
    for name, path in parse_qsl(query):
        if name in _FILES:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise ValueError(f"{name}={path} cannot be read: {error.strerror}") from None


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
