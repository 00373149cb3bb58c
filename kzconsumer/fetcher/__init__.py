"""One loop per broker fetches for all partitions it leads. Read `broker_fetcher`, then `decode_and_queue`.

- What is asked for: `fetch_set`, `fetch_session`, `throttle`; `fetch_state` is of one partition.
- What an answer means: `fetch_rules`, `response_handler`, `silent_partitions`, `corrupt_batches`; `decode_and_queue`.
- Which broker, and from where: `fetcher_manager` (leaders that are lost), `offset_reset` (no stored offset, or one that
  the log does not have; logs that were cut off).
- Without a group: `range_reader`, `range_account`; `record_times`.
"""
