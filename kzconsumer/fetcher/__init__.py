"""One loop per broker fetches for all partitions it leads. Read `broker_fetcher`, then `decode_and_queue`.

- What is asked for: `fetch_set`, `fetch_session`, `throttle` (limits, quotas); `fetch_state` is of one partition.
- What an answer means: `fetch_rules` (errors, empty answers, in which form records are read), `response_handler`,
  `silent_partitions`, `corrupt_batches`; `decode_and_queue`.
- Which broker: `leader_finder`; how many loops, and when a planned range is read: `fetcher_manager`. From where:
  `offset_reset` (no stored offset, or one that the log does not have; logs that were cut off).
- Without a group: `range_reader`, `range_account`. Timestamps at given offsets: `record_times`.
"""
