"""OpenAI's API over HTTP, in front of the queue: thin over the client, stateless, any number of replicas.

A request goes through the files in this order:

    connection      headers: how many, how large, how slowly they may come
    edge            every request gets an id, a log line, its metrics; whatever goes wrong, an OpenAI error
    door            whose key it is, and what that may send
    body            read up to its limit, and no further
    wishes          lane, deadline, id, session: what headers and body say
    models          which queue answers
    calls           enqueued; then `waiting` for the result, or `streaming` of its tokens
    token_budget    tokens that keys may use, reserved and settled

A further part of the API is a module with an APIRouter, which `app` includes.
"""
