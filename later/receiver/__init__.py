"""Receivers: calls of later over HTTP, for the handlers of a Python application."""
