"""The only code of the gateway that sends commands to Redis: one typed method per operation, each a script or command.

It works on the keys that belong to all gateways and to no queue; its scripts are in the gateway's folder lua/. It needs
no web server, so that the command line can manage keys and dead webhooks without one.
"""

from __future__ import annotations

from streamfleet.common import scripts

PACKAGE = "streamfleet.gateway"
VERBS = scripts.add(PACKAGE)
