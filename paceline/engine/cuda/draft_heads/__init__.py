"""Draft heads on a GPU: the layers by format, and how a target drafts with them."""
