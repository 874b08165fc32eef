"""The only code that sends commands about queues to Redis: one broker for each role, with that role's verbs.

`producer`, `worker` (with `housekeeping`), and `client`, which producers and operators share; the operators' broker is
in `streamfleet.operator.broker`.
"""
