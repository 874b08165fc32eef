"""The demo's gateway: the real one, as a separate process on a free port."""

from __future__ import annotations

import json
from pathlib import Path

from streamfleet.cli.demo.own_process import OwnProcess, environment


class GatewayProcess(OwnProcess):
    """`streamfleet gateway` that stores files in a folder and may send webhooks to this machine.

    Args:
        redis_url: its Redis.
        folder: folder for its log and the contents of files.
        port: its port; 0 for any free one.
    """

    def __init__(self, redis_url: str, folder: Path, port: int) -> None:
        env = environment(
            redis_url,
            gateway_host="127.0.0.1",
            gateway_port=str(port),
            gateway_health_port="0",
            gateway_files=(folder / "files").as_uri(),
            # The receiver is on this machine, and has no TLS.
            gateway_webhooks_allow_private="true",
            gateway_webhooks_allow_http="true",
            gateway_webhooks_ports="0",
            log_format="json",
        )
        super().__init__(["gateway"], folder / "gateway.log", env)

    async def until_listening(self) -> int:
        """Wait until the gateway listens. Returns its port.

        Raises:
            ProcessEnded: it ended first, for example because the port is in use.
        """
        found = 0

        async def ready() -> bool:
            nonlocal found
            found = port_in(self.log_file.read_text(errors="replace"))
            return found > 0

        await self.until(ready, poll_s=0.05)
        return found


def port_in(log: str) -> int:
    """The port in a gateway's log; 0 before it is logged."""
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # an unfinished line, or another program's
        if isinstance(event, dict) and event.get("event") == "gateway_ready":
            return int(event["port"])
    return 0
