"""Common parts of the draft and the target server."""
