"""Calibrated conversion: statistics of each linear op's inputs, and the codes with the least loss on them."""
