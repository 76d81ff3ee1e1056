"""Settings of every test, made before NumPy is imported."""

import os
import signal

# Matrices of tests are small: threads of a BLAS only wait for each other, and where cores are shared they wait long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Started in the background by a shell without job control, this process ignores Ctrl-C and would pass that on to the
# programs whose Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
