"""The HTTP API: handlers that create, query, change and explain tasks."""
