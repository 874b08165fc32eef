"""OpenAI's API over HTTP, in front of the queue: thin over the client, stateless, any number of replicas.

A request passes `connection`, `edge`, `authentication`, `body`, `request_parameters` and `models`. Then `inference`
enqueues it, and answers with its result, or by `streaming` with its tokens. Only `broker` sends commands to Redis, by
the scripts in lua/. To add a part to the API, write a module with an APIRouter and include it in `app`.
"""
