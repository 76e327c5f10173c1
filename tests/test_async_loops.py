"""An event loop that ends with a lease held: others get the lock, and the lease says that it is lost."""

from __future__ import annotations

import asyncio

import pytest

import dibs
import dibs.aio
from dibs.errors import LossReason
from servers.postgres import PostgresServer
from servers.zookeeper import HOST, ZooKeeperServer

PATIENCE = 30.0


@pytest.fixture
def advisory(postgres: PostgresServer) -> str:
    return postgres.url_of(scheme="postgresql+advisory")


@pytest.fixture
def ensemble(zookeeper: ZooKeeperServer) -> str:
    return f"zookeeper://{HOST}:{zookeeper.port}/loops"


@pytest.mark.parametrize("store", ["advisory", "ensemble"])
def test_what_would_live_without_its_loop_ends_with_it(store: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(store)
    client = dibs.aio.connect(url)

    async def main() -> dibs.aio.Lease:
        return await client.lock("loop", ttl=20).acquire(timeout=PATIENCE)

    lease = asyncio.run(main())
    with dibs.connect(url) as other:
        other.lock("loop", ttl=5).acquire(timeout=PATIENCE).release()
    assert lease.lost_reason is LossReason.SESSION_ENDED


def test_a_client_is_of_one_loop_and_its_lease_is_lost_by_time_after_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    client = dibs.aio.connect(f"memory:{tmp_path_factory.mktemp('loop')}".replace("/", "-"))

    async def main() -> dibs.aio.Lease:
        async with asyncio.timeout(PATIENCE):
            return await client.lock("loop", ttl=0.2).acquire()

    lease = asyncio.run(main())
    with pytest.raises(dibs.Misuse, match="another event loop"):
        asyncio.run(main())
    asyncio.run(asyncio.sleep(0.2))
    assert lease.lost_reason is LossReason.EXPIRED
