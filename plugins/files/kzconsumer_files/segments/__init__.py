"""The sink `segments`: an archive of record batches in segment files of Kafka's own format."""
