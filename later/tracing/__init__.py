"""Traces by OpenTelemetry: the spans of creates and deliveries, and their export. Imported only with `--otlp`."""
