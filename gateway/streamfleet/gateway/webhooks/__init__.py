"""Webhooks, by the Standard Webhooks specification: signed, retried, dead-lettered, and sent to allowed addresses only.

A webhook goes through the files in this order:

    service         checks a callback URL when it is given; announces each event once
    targets         checks the form of a callback URL, looks up its addresses, and decides which are allowed
    deliverer       any gateway takes and signs webhooks that are due, a few at a time for each host
    sender          looks the name up once, and sends the request to the address that was checked
    signing         has the secrets of the tenant
    retry_policy    decides by the answer: delivered, later, or dead

Of the rest of the gateway, this package imports only `broker` and `webhook_messages`.
"""
