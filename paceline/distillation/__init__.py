"""Small drafts for any target: the target's own text, a few of its layers, and training on its distribution."""
