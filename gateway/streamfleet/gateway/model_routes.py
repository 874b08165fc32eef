"""GET /v1/models: the models that callers may name.

The names come from `models`. A request for them counts towards no limit.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from streamfleet.gateway.auth_context import authenticate
from streamfleet.gateway.document import answers, operation
from streamfleet.gateway.messages.translation import model_object, page
from streamfleet.gateway.models import model_not_found

OWNER = "streamfleet"
router = APIRouter(tags=["models"])


@router.get("/v1/models", **operation({200: answers("ModelList")}))
async def models(request: Request) -> JSONResponse:
    """List all models."""
    context = await authenticate(request)
    lengths = await context.gateway.models.lengths()
    if context.call.anthropic:
        return JSONResponse(page([model_object(*each) for each in lengths.items()]))
    return JSONResponse({"object": "list", "data": [_model(*each) for each in lengths.items()]})


# A path: names of models have slashes in them.
@router.get("/v1/models/{model:path}", **operation({200: answers("Model")}, (404,)))
async def model(request: Request, model: str) -> JSONResponse:
    """One model."""
    context = await authenticate(request)
    lengths = await context.gateway.models.lengths()
    if model not in lengths:
        raise model_not_found(model)
    shown = model_object if context.call.anthropic else _model
    return JSONResponse(shown(model, lengths[model]))


def _model(name: str, longest: int | None) -> dict[str, Any]:
    # The time of creation is unknown; clients only need a number.
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER, "max_model_len": longest}
