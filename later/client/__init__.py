"""Another later's HTTP API: one client, one batch sender."""
