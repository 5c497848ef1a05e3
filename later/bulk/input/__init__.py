"""The input of bulk jobs: rows of a table or of files, read as tasks."""
