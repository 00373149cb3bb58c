"""One loop per broker fetches for all partitions it leads. Read `broker_fetcher`, then `delivery`."""
