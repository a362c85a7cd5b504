"""CPU kernels, compiled by Numba: products with weights, norms, attention, and sampling.

For the few rows of decoding, torch's many small operations cost more than their work, and torch's fused attention packs
all keys again for every few queries. Every kernel here computes each row in one fixed order, so it is batch invariant.
"""
