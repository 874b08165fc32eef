"""Endpoints that take the request and give the response themselves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class DirectRoute(APIRoute):
    """A route whose endpoint is all that there is, in the document like any other.

    FastAPI's own handler would look for parameters to read and values to write out; there are none, and it takes a
    tenth of a millisecond.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint itself: ``async def endpoint(request) -> Response``."""
        return self.endpoint
