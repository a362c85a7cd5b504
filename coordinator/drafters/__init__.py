"""Drafters: each proposes tokens for the target to verify, in a file of its own.

To add one, write `NAME.py` with a `Drafter` and a `FACTORY` (see `drafter`), and add its name to
`paceline.speculation.Drafter`. Settings, help texts, the wire and the page take it from there.
"""
