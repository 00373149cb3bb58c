"""The data source for a Spark of the user's own: a streaming query as a member of a group."""
