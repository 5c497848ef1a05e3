"""A client of another later's HTTP API, and a batch sender with retries."""
