"""The choice of the kernel that serves an op, and the reasons for it."""
