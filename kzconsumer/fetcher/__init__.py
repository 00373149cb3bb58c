"""One loop per broker and 250 partitions fetches. Read `broker_fetcher`, then `delivery`."""
