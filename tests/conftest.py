"""Settings of every test, made before NumPy is imported."""

import os

# Matrices of tests are small: threads of a BLAS only wait for each other, and where cores are shared they wait long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
