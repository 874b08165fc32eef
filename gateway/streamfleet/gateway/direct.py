"""Routes whose endpoint takes the request and returns the response without FastAPI's handler.

The routes of `calls` use it, because they are called most.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class DirectRoute(APIRoute):
    """A route that calls its endpoint directly; the OpenAPI document shows it like any other.

    FastAPI's own handler would look for parameters and serialize the return value. Such an endpoint has neither, and
    the search takes 0.1 ms.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the endpoint itself: ``async def endpoint(request) -> Response``."""
        return self.endpoint
