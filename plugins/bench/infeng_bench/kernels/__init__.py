"""Single ops: the choice of kernels, and programs that consist of one op."""
