"""`dibs reseed` tells the nodes of a Redlock the highest fence, and refuses what is none."""

from __future__ import annotations

import json
from collections.abc import Callable

from servers.redis import RedisServer

from .processes import Sandbox


def test_every_fence_is_above_the_floor(box: Sandbox, start_redis: Callable[..., RedisServer]) -> None:
    url = "redlock://" + ",".join(f"127.0.0.1:{start_redis().port}" for _ in range(3))
    floor = 8_000_000_000_000_000
    done = box.dibs("reseed", str(floor), "--url", url)
    assert (done.returncode, done.stdout) == (0, f"all nodes vote, and every fence is above {floor}\n")
    assert json.loads(box.dibs("reseed", str(floor), "--url", url, "--json").stdout) == {
        "reseeded": True,
        "floor": floor,
    }
    box.dibs("acquire", "x", "--url", url)
    [holder] = json.loads(box.dibs("ls", "--url", url, "--json").stdout)
    assert holder["fence"] == floor + 1


def test_other_stores_cannot_be_reseeded(box: Sandbox) -> None:
    done = box.dibs("reseed", "1")
    assert done.returncode == 64
    assert "only a redlock" in done.stderr
