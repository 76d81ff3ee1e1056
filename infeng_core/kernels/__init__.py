"""Which kernel serves an operation, and why."""
