"""Spark: the data source, the bulk jobs and the report. Only this package imports pyspark, pyarrow and pandas."""
