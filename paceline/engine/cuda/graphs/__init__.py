"""A step in fixed shapes, which CUDA captures once as a graph and replays."""
