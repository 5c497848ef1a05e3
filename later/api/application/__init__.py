"""The application of each kind of daemon, built from its table of routes."""
