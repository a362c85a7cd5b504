"""Drafters: each proposes tokens for the target to verify.

To add one, write `NAME.py` with a `Drafter` and a `FACTORY` and add the name to `paceline.speculation.Drafter`.
"""
