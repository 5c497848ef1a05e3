"""The commands of `later`, but for those of `later bulk`."""
