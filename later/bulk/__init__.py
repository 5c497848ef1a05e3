"""SPARK: the data source and the jobs; the only place that imports pyspark and what comes with it."""
