"""One process of the daemon: builds the service from a Config, starts it and stops it in order."""
