"""Results as plain data, and HTML pages of results."""
