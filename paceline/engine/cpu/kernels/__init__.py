"""What a forward does on CPU between its products with weights, compiled by Numba.

The library does these parts in several small operations each, which cost more than their
work for the few rows of decoding, and its fused attention packs all keys again for every
few queries. Every function here computes each row by itself, in one fixed order: its bits
do not depend on the rows beside it.
"""
