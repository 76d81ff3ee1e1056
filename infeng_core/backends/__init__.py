"""The interface of a backend, which runs batches, and the native backend."""
