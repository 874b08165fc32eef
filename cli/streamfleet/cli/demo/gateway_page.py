"""The gateway's page: where it is, how to get in, and staying there for as long as somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import webbrowser

import httpx

from streamfleet.cli.demo.gateway_calls import CAPITAL
from streamfleet.cli.demo.prompts import chat
from streamfleet.cli.demo.shell import Shell

EVERY_S = 3.0
REQUEST_TIMEOUT_S = 120.0


async def look_at_page(shell: Shell) -> list[str]:
    """Ask for the page, and with the operator's key for what it shows; what is not as it should be."""
    page = await shell.run("curl -sS -o /dev/null -w '%{http_code} %{content_type}\\n' $GATEWAY/ui")
    problems = []
    if not page.startswith("200 text/html"):
        problems.append(f"page: GET /ui should be 200 text/html, not {page.strip()}")
    data = await shell.run('curl -sS $GATEWAY/ui/api/overview -H "Authorization: Bearer $OPERATOR_KEY"')
    if '"lanes"' not in data:
        problems.append("page: /ui/api/overview should have the lanes")
    return problems


def has_desktop() -> bool:
    """Whether a browser could show anything here."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_page(shell: Shell, url: str) -> None:
    """Open a browser there, on a desktop; elsewhere say why not."""
    if not has_desktop():
        shell.say("no browser opened: there is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set)", "yellow")
    elif not webbrowser.open(url):
        shell.say("no browser opened: none was found; open the address yourself", "yellow")


async def keep_busy(url: str, key: str, model: str) -> None:
    """Ask a small question every few seconds, so that there is something to see, until this is cancelled.

    Args:
        url: of the gateway.
        key: an API key.
        model: whom to ask.
    """
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        while True:
            # The page shows what fails, and the audit counts it.
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/chat/completions", json={"model": model, **chat(CAPITAL, 16)})
            await asyncio.sleep(EVERY_S)
