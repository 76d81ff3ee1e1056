"""A NumPy backend for INF-ENG: the whole forward pass in readable Python, for tests and prototypes.

``infeng run MODEL --set backend.use=numpy`` runs a model on it.
"""

__version__ = "0.1.0"
