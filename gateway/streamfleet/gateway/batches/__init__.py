"""OpenAI's Batch API: a file of requests in, a file of answers out. It survives the death of gateways.

routes      a batch is accepted: its record goes into Redis
scheduler   any gateway takes the batch, and keeps it while it renews its lease
validation  lines are counted and checked by `lines`; an invalid line fails alone
lifecycle   the steps of a batch, in their order: validate, submit, finish, announce
submitter   a window of lines is in the queue, and their results are gathered
ledger      answers are stored, then recorded in Redis together with the numbers of their lines, in one call
"""
