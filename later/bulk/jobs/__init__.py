"""The jobs of `later bulk`: create, verify, cancel and export."""
