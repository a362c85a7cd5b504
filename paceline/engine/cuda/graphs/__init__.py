"""Programs: engine steps in fixed shapes, which CUDA captures once as graphs and replays."""
