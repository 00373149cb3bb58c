"""One loop per broker fetches for all partitions it leads. Read `broker_fetcher`, then `delivery`.

- What is asked for: `fetch_set`, `fetch_session`, `throttle`; `fetch_state` is of one partition.
- What an answer means: `reading`, `intake`, `silent_partitions`, `corrupt_batches`; `delivery` decodes and queues it.
- Which broker, and from where: `fetcher_manager` (leaders that are lost), `offset_reset` (logs that were cut off).
- Without a group: `range_reader`, `range_account`; `record_times`.
"""
