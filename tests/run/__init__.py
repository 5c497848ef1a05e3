"""Tests of `later run`, without processes."""
