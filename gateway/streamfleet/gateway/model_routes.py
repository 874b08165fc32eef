"""GET /v1/models: the models that callers may name.

The names come from `models`. A request for them counts towards no limit.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from streamfleet.gateway.auth_context import authenticate
from streamfleet.gateway.document import answers, operation
from streamfleet.gateway.models import model_not_found

OWNER = "streamfleet"
router = APIRouter(tags=["models"])


@router.get("/v1/models", **operation({200: answers("ModelList")}))
async def models(request: Request) -> JSONResponse:
    """List all models."""
    context = await authenticate(request)
    return JSONResponse({"object": "list", "data": [_model(name) for name in await context.gateway.models.names()]})


# A path: names of models have slashes in them.
@router.get("/v1/models/{model:path}", **operation({200: answers("Model")}, (404,)))
async def model(request: Request, model: str) -> JSONResponse:
    """One model."""
    context = await authenticate(request)
    if model not in await context.gateway.models.names():
        raise model_not_found(model)
    return JSONResponse(_model(model))


def _model(name: str) -> dict[str, Any]:
    # The time of creation is unknown; clients only need a number.
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}
