"""The worker: tickers that move tasks between buckets, and slots for the deliveries of due tasks."""
