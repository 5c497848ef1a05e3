"""Several processes that are one daemon: a supervisor, and children that share the work and the port."""
