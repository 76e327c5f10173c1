"""A renewal on a real server that hangs ends as other steps do, whatever the ttl."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import dibs
import dibs.aio
from dibs.testing.proxy import FaultProxy
from servers.redis import RedisServer

DAY = 86_400.0


def test_renewing_by_hand_on_a_server_that_hangs_ends_in_both_colours(
    redis_server: RedisServer, fault_proxy: Callable[[RedisServer], FaultProxy]
) -> None:
    """No upper bound is asserted: a third of the ttl, which it once waited for, is longer than any test may take."""
    proxy = fault_proxy(redis_server)
    url = f"redis://127.0.0.1:{proxy.port}/0"
    ready, hangs = Future[None](), Future[None]()

    def blocking(client: dibs.Client) -> None:
        lease = client.lock("blocking", ttl=DAY).acquire(timeout=0)
        ready.set_result(None)
        hangs.result()
        with pytest.raises(dibs.StoreUnavailable):
            lease.renew()

    async def main() -> None:
        with dibs.connect(url) as client:
            both = asyncio.create_task(asyncio.to_thread(blocking, client))
            async with dibs.aio.connect(url) as other:
                lease = await other.lock("async", ttl=DAY).acquire(timeout=0)
                await asyncio.wrap_future(ready)
                with proxy.black_hole("replies"):
                    hangs.set_result(None)
                    with pytest.raises(dibs.StoreUnavailable):
                        await lease.renew()
                    await both

    asyncio.run(main())
