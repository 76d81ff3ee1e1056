"""Three kernels for INF-ENG; the library beside this file holds them."""
