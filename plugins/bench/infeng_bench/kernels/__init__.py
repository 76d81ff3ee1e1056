"""Single ops: which kernels, and programs of nothing but one of them."""
