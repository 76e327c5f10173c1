"""Guards: what they let through, what they refuse, and what they never do to the caller's transaction."""
