"""Outgoing HTTP: the calls to receivers."""
