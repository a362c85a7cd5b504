"""A generation's caches on the model servers: the link to each server, and what the coordinator knows of a cache."""
