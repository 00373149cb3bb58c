"""Ranges of Kafka records as files, published exactly once, and the sinks `parquet` and `segments`."""
