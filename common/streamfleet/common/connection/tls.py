"""TLS: what a URL's options name, and what to say when a server is not the one that it should be."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import parse_qsl

_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def tls_options(url: str) -> dict[str, bool]:
    """What holds for TLS unless the URL says otherwise. redis-py before 6.0 would not compare the host name."""
    return {"ssl_check_hostname": True} if url.startswith("rediss://") else {}


def check_tls_files(url: str) -> None:
    """Find out before the first command whether the files can be read: later it would look like a server that is away.

    Raises:
        ValueError: one cannot; the message names option and file.
    """
    query = url.partition("?")[2]
    if not url.startswith("rediss://") or "@" in query:
        return  # with an @ behind the ?, what looks like an option may be a part of the password
    for name, path in parse_qsl(query):
        if name in _FILES:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                raise ValueError(f"{name}={path} cannot be read: {error.strerror}") from None


def distrust(error: BaseException) -> str | None:
    """What to say where the connection was refused by ourselves, because of the server's certificate; else None."""
    seen: BaseException | None = error
    for _ in range(5):
        if isinstance(seen, ssl.SSLCertVerificationError):
            return (
                f"the server's certificate is refused: {seen.verify_message.rstrip('.')}. Name the authority that "
                "signed it with ?ssl_ca_certs=FILE, and use a host name that it was issued for"
            )
        seen = seen and (seen.__cause__ or seen.__context__)
    return None
