"""The process that holds the Spark session."""
