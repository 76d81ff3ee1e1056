"""What `infeng plugins bench` measures: a file for kernels, and one for the parts in Python."""
