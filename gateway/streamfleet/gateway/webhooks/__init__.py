"""Webhooks, by the Standard Webhooks specification: signed, retried, dead-lettered, and sent to allowed addresses only.

`service` checks callback URLs by `targets`, and announces each event once. The `deliverer` of any gateway takes what is
due, signs it with the secrets of `signing`, and sends it by `sender`, to an address that was checked; `retry_policy`
decides by the answer. Nothing else of the gateway is imported but `broker`, `metrics` and `webhook_messages`.
"""
