"""The description of the API, in OpenAPI 3.1: a table of operations, and the schemas of what they take and answer."""
