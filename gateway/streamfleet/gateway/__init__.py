"""OpenAI's API over HTTP, in front of the queue: thin over the client, stateless, any number of replicas.

A request goes through the files in this order:

    connection          headers: how many, how large, how slowly they may come
    edge                every request gets an id, a log line and metrics; every failure becomes an OpenAI error
    authentication      the API key: its owner, and what the owner may send
    body                read up to its limit, and no further
    request_parameters  lane, deadline, id and session, from headers and body
    models              which queue answers
    calls               enqueue; then wait for the result, or `streaming` of its tokens
    token_budget        tokens that keys may use, reserved and settled

`broker` is the one part that sends commands to Redis, by the scripts in lua/.
To add a part to the API, write a module with an APIRouter and include it in `app`.
"""
