"""Results as plain data, and pages of them."""
