"""Drafters. To add one, write `NAME.py` with a `FACTORY` and add the name to `paceline.speculation_params.Drafter`."""
