"""A service that charges cards, for tests of real servers: each charge is two lines in a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from pydantic import BaseModel

import dibs.aio
from dibs.asgi import IdempotencyKeyMiddleware, by_authorization

charges = Path(os.environ.get("CHARGES", "charges"))

app = FastAPI()
app.add_middleware(
    IdempotencyKeyMiddleware,
    client=dibs.aio.connect(),
    scope=by_authorization,
    required=lambda scope: scope["path"] == "/charges",
)


class Charge(BaseModel):
    amount: int
    seconds: float = 0.0


@app.post("/charges", status_code=201)
async def charge(charge: Charge, response: Response) -> dict[str, Any]:
    """Charge the card."""
    with charges.open("a") as file:
        file.write(f"begun {os.getpid()} {charge.amount}\n")
    await asyncio.sleep(charge.seconds)
    with charges.open("a") as file:
        file.write(f"charged {os.getpid()} {charge.amount}\n")
    response.headers["location"] = f"/charges/{os.getpid()}"
    return {"charged": charge.amount, "by": os.getpid()}


@app.get("/health")
async def health() -> str:
    """Say that it runs."""
    return "ok"
