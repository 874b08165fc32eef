"""The gateway's page in the demo: checks it, opens a browser, and keeps the fleet busy for viewers."""

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
    """Request the page, and its data with the operator's key. Returns the problems."""
    page = await shell.run("curl -sS -o /dev/null -w '%{http_code} %{content_type}\\n' $GATEWAY/ui")
    problems = []
    if not page.startswith("200 text/html"):
        problems.append(f"page: GET /ui should be 200 text/html, not {page.strip()}")
    data = await shell.run('curl -sS $GATEWAY/ui/api/overview -H "Authorization: Bearer $OPERATOR_KEY"')
    if '"lanes"' not in data:
        problems.append("page: /ui/api/overview should have the lanes")
    return problems


def has_desktop() -> bool:
    """True if this machine has a display."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_page(shell: Shell, url: str) -> None:
    """Open a browser on a desktop; elsewhere print the reason why not."""
    if not has_desktop():
        shell.say("no browser opened: there is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set)", "yellow")
    elif not webbrowser.open(url):
        shell.say("no browser opened: none was found; open the address yourself", "yellow")


async def keep_busy(url: str, key: str, model: str) -> None:
    """Send a small request every few seconds until cancelled, so that the page shows activity.

    Args:
        url: URL of the gateway.
        key: an API key.
        model: model to ask.
    """
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        while True:
            # Failures are ignored here: the page shows them, and the audit counts them.
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/v1/chat/completions", json={"model": model, **chat(CAPITAL, 16)})
            await asyncio.sleep(EVERY_S)
