"""Tables and figures of 2211.17192 (Leviathan, Kalman, Matias) for a pair of models, with the paper's numbers."""
