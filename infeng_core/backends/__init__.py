"""What runs a batch: the interface of a backend, and the native one."""
