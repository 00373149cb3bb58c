"""Key and value of records become columns.

Read `shaping` (the order: decode, separate bad records into the quarantine or refuse them, then filter and select),
then `decoding`, which chooses between `json_reading`, `avro_and_protobuf` and Spark's own functions. Schemas come from
files (`schema_files`, checked before Spark starts), from a registry (`schema_registry`), or from the settings as
Spark's DDL, of which `ddl_types` knows the types that JSON is read as.
"""
