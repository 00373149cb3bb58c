"""Key and value of records become columns.

Read `shaping` (the order: decode, separate bad records into the quarantine or refuse them, then filter and select),
then `decoding`, which chooses between `json_reading`, `avro_and_protobuf` and Spark's own functions. `schemas`: of
JSON, Avro and protobuf, in files, checked before Spark starts, and in a registry.
"""
