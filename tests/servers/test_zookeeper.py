"""The ZooKeeper server of the tests starts again with what a kill at any moment leaves behind."""

from __future__ import annotations

import pytest

from servers.zookeeper import ZooKeeperServer


@pytest.mark.parametrize("written", [0, 15], ids=["empty", "half a header"])
def test_a_server_that_was_killed_when_it_began_a_log_starts_again(written: int) -> None:
    """The log has nothing in it, not even all of its header."""
    with ZooKeeperServer() as server:
        server.kill9()
        (server.folder / "data" / "version-2" / "log.ff").write_bytes(b"\0" * written)

        server.start()

        assert server.role == "standalone"
