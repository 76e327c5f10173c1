"""A service that charges cards, for tests of real servers: each charge is two lines in a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from fastapi import BackgroundTasks, FastAPI, Response
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
    later: str = ""
    """What is done after the answer: until the file of that name is there, or the error of that name."""


@app.post("/charges", status_code=201)
async def charge(charge: Charge, response: Response, tasks: BackgroundTasks) -> dict[str, Any]:
    """Charge the card."""
    with charges.open("a") as file:
        file.write(f"begun {os.getpid()} {charge.amount}\n")
    await asyncio.sleep(charge.seconds)
    with charges.open("a") as file:
        file.write(f"charged {os.getpid()} {charge.amount}\n")
    if charge.later:
        tasks.add_task(go_on, charge.later)
    response.headers["location"] = f"/charges/{os.getpid()}"
    return {"charged": charge.amount, "by": os.getpid()}


async def go_on(later: str) -> None:
    """Work after the answer."""
    if later == "ZeroDivisionError":
        raise ZeroDivisionError
    while not charges.with_name(later).exists():
        await asyncio.sleep(0.01)
    charges.with_name(later).unlink()


@app.get("/health")
async def health() -> str:
    """Say that it runs."""
    return "ok"
