"""What the steps of an engine cost: measured, fitted, shipped."""
