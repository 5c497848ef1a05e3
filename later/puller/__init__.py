"""The worker that claims tasks of pulled topics for an application's handlers."""
