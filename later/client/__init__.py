"""A client of the HTTP API of another `later`, and a batch sender with retries."""
