"""The coordinator: runs the speculation loop."""
