"""OpenAI's Batch API: a file of requests in, a file of answers out. It survives the death of gateways.

`routes` accepts a batch: its record goes into Redis, where the `scheduler` of any gateway takes it for a lease. Then
come the steps of `lifecycle`: it checks the lines, `submitter` keeps a window of them in the queue, and
`ledger` stores answers and records them in Redis together with the numbers of their lines, in one call.
"""
