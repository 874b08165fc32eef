"""TLS: default options, checks of those that a URL names, and the message for a refused certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping


def tls_options(url: str) -> dict[str, bool]:
    """Default TLS options; a URL may override them. redis-py before 6.0 would not check the host name."""
    return {"ssl_check_hostname": True} if url.startswith("rediss://") else {}


def tls_mistake(given: Mapping[str, str]) -> str:
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
