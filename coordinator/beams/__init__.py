"""Beam search: the arithmetic of hypotheses, their sequences on a model server, drafts for them, and the loop."""
