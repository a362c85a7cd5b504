"""The APIs that generate; registered in `gateway/app.py`. A file each, and one for what responses are asked with."""
