"""What the resource runs: it remembers the highest fence that it has seen, and refuses what comes with a lower one."""

from dibs.errors import GuardMissing, StaleFence
from dibs.guards.asgi import FenceMiddleware
from dibs.guards.column import ColumnGuard
from dibs.guards.files import FileGuard
from dibs.guards.memory import MemoryGuard
from dibs.guards.redis import RedisGuard
from dibs.guards.table import TableGuard

__all__ = [
    "ColumnGuard",
    "FenceMiddleware",
    "FileGuard",
    "GuardMissing",
    "MemoryGuard",
    "RedisGuard",
    "StaleFence",
    "TableGuard",
]
