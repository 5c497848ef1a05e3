"""Where tasks are sent: the HTTP API or the store."""
