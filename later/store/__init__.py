"""The tasks in Redis or Valkey: no other package knows their keys and scripts."""
