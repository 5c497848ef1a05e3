"""One process of later's: builds the house from a Config, starts it and stops it in order."""
