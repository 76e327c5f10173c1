"""Tests of the etcd store on one real server, in both colours, that count what it is asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dibs.stores.etcd.port.gateway import Etcd
from dibs.testing.contract.suite import Fixtures, Kind
from servers.etcd import EtcdServer


class EtcdKind(Kind, Fixtures):
    """Subclass it, as those of the contract are."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, etcd_server: EtcdServer) -> str:
        """A server that is empty."""
        return etcd_server.url

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
        """How often each method of etcd is called from now on."""
        counts = Counter[str]()
        call, watch = Etcd.call, Etcd.watch

        async def counted_call(self: Etcd, method: str, *rest: Any) -> Any:
            counts[method] += 1
            return await call(self, method, *rest)

        async def counted_watch(self: Etcd, *rest: Any, **span: Any) -> Any:
            counts["watch"] += 1
            return await watch(self, *rest, **span)

        monkeypatch.setattr(Etcd, "call", counted_call)
        monkeypatch.setattr(Etcd, "watch", counted_watch)
        return counts
