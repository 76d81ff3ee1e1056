"""A kernel is tried in a child process and compared with the reference before it is believed."""
