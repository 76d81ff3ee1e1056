"""The interfaces of conversion that other wheels implement, and their hooks."""
