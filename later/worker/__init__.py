"""Time passes here: the tickers, the hands and the lanes."""
