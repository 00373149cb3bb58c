"""Key and value of records become columns.

Read `shaping` (the order: decode, refuse bad records or put them aside, then filter and select), then `decoding`, which
chooses between `json_reading`, `avro_and_protobuf` and Spark's own functions.

- The files with bad records: `bad_records`. The options that leave out rows and make columns: `where_and_select`.
- Schemas come from files (`schema_files`, checked before Spark starts), from a registry (`schema_registry`), or from
  the settings as Spark's DDL, of which `ddl_types` knows the types that JSON is read as.
"""
