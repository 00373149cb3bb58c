"""The sink `parquet`: ranges of records as Parquet files, exactly once, without a JVM."""
