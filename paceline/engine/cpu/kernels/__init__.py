"""CPU kernels compiled by Numba. Each computes every row in one fixed order, so it is batch invariant."""
