"""A daemon of several processes: a supervisor, and child processes that share the work and the port."""
