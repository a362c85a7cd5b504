"""Draft heads: layers that draft from a target's hidden states, in a folder of their own. A file a format."""
