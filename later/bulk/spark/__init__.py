"""Spark itself: its session, its errors, its signals."""
