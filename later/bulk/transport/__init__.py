"""The transports of bulk jobs: the HTTP API, or the store directly."""
