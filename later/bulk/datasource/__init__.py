"""The Spark data source `format("later")`."""
