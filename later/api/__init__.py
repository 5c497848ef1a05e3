"""HTTP in: creates, deletes and queries tasks."""
