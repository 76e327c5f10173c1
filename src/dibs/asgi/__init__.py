"""For web applications: a request that is repeated with the same ``Idempotency-Key`` gets the answer of the first.

Who comes with a stale fence is refused by `dibs.guards.FenceMiddleware`.
"""

from dibs.asgi.middleware import IdempotencyKeyMiddleware, anyone, by_authorization, retryable

__all__ = ["IdempotencyKeyMiddleware", "anyone", "by_authorization", "retryable"]
