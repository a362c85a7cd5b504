"""One engine a process. Each runs in the environment that has its engine, and speaks `protocol`."""
