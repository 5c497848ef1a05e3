"""A later within an application: store, API and upkeep in its process, and no daemon."""
