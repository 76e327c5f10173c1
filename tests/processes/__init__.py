"""Real processes that are stopped, continued and killed while they share a lock and what it protects."""
