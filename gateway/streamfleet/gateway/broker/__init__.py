"""The only code of the gateway that sends commands to Redis: one typed method per operation, each a script or command.

It works on the keys that belong to all gateways and to no queue; its scripts are in the gateway's folder lua/. It needs
no web server, so that the command line can manage keys and dead webhooks without one.
"""

from __future__ import annotations

from streamfleet.common import scripts

PACKAGE = "streamfleet.gateway"
VERBS = (
    "gateway_admit",
    "gateway_reserve",
    "gateway_settle",
    "gateway_due",
    "gateway_file_add",
    "gateway_file_delete",
    "gateway_batch_add",
    "gateway_batch_take",
    "gateway_batch_lease",
    "gateway_batch_save",
    "gateway_batch_cancel",
    "gateway_batch_finish",
    "gateway_response_add",
    "gateway_response_finish",
    "gateway_response_delete",
    "gateway_response_chain",
    "webhook_announce",
    "webhook_take",
    "webhook_settle",
    "webhook_requeue",
    "gateway_change",
)
scripts.add(PACKAGE, VERBS)
