"""A daemon of several processes: a supervisor, and children that share the work and the port."""
