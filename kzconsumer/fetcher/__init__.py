"""Per broker a loop, or several, fetches for all partitions it leads. Read `broker_fetcher`, then `decode_and_queue`.

- When the next request goes out, and how long its answer may take: `broker_fetcher`. What is asked for: `fetch_set`
  (which partitions), `fetch_session` (which of them a request names), `throttle` (how many bytes, by limits and
  quotas); `fetch_state` is of one partition.
- What an answer means: `fetch_rules` (the rules only: errors, empty answers, in which form records are read), which
  `response_handler` carries out (partitions that leave, transactions that stay open); `silent_partitions` asks for one
  alone. Then `decode_and_queue`, at once or in a thread; what follows a batch that cannot be used: `corrupt_batches`.
- Which broker: `leader_finder`; how many loops, brokers that are late, and when a planned range is read:
  `fetcher_manager`. From where: `offset_reset` (no stored offset, or one that the log does not have; logs that were cut
  off).
- Without a group: `range_reader` asks for given ranges, `range_account` says whether an offset is missing.
  `record_times` asks leaders for timestamps that were not fetched (those that were: `kzconsumer.lag`).
"""
