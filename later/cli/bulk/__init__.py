"""The commands of `later bulk`."""
