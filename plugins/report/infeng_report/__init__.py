"""Pages of tables and charts from the results of `infeng bench`."""

__version__ = "0.1.0"
