"""The commands of `later`, except those of `later bulk`."""
