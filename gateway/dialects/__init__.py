"""The APIs that generate, a file each; registered in `gateway/app.py`."""
