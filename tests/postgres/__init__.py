"""What dibs does in transactions of the caller's own, on a real PostgreSQL."""
