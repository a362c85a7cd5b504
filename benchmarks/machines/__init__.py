"""Users of several machines, simulated: with pairs, with separate targets and drafts, and without drafts."""
