"""OpenAI's Batch API: a file of requests in, a file of answers out, whichever gateways die meanwhile.

routes      a batch is accepted: a record in Redis
runner      any gateway takes it, for as long as it renews its lease
checking    its lines are counted and checked; one that is none fails by itself
running     a window of them is in the queue; results are gathered
ledger      what is answered is stored, then written down in Redis with the lines that it answers, at once
"""
