"""A NumPy backend for INF-ENG: the whole forward pass in readable Python, an oracle and a place to prototype.

``infeng run MODEL --set backend.use=numpy`` runs a model on it.
"""

__version__ = "0.1.0"
