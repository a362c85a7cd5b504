"""The engine on a CPU: the forward, its cache and its samplers, by kernels compiled from Python."""
