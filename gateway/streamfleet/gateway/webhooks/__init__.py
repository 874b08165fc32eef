"""Webhooks, by the Standard Webhooks specification: signed, retried, dead-lettered, and never to where they may not go.

A webhook goes through the files in this order:

    service         a callback URL is checked when it is given; an event is announced, once
    targets         what a callback URL may look like
    addresses       where it may lead
    deliverer       any gateway takes what is due, a few at a time for each host
    sender          its name is looked up once, and the request goes to the address that was checked
    signing         with the secrets of its tenant
    verdict         what an answer means: delivered, later, or given up

Nothing here needs the rest of the gateway.
"""
