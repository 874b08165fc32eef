"""Code for operators of a fleet: the read model of a queue, commands, exporter, capacity plans, repair, access rules.

Reads come through `broker`, are put together by `snapshot`, `lateness`, `request_trace` and the like, and go to the
commands, the exporter and the gateway's page. It writes only what an operator orders: pausing, dead letters, repairs.
"""
