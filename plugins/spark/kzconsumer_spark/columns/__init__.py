"""Key and value of records become columns. Read `shaping`, then `decoding`.

`decoding` chooses between `json_reading`, `avro_and_protobuf` and Spark's own functions. `schemas`: those in files,
checked before Spark starts, and those in a registry.
"""
