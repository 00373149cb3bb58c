"""Who owns what: one loop claims, moves and releases. Read `rebalancer`, then `claim_and_release`.

- When a rebalance begins, and what it waits for: `rebalancer`; how each claim begins and ends: `claim_and_release`.
- This member's registration, for which it may have to wait, and the group as read: `membership`; what it keeps, moves,
  releases and claims, without IO: `assignment`.
- What is owned, and from where its partitions are fetched, at first, after a replay or a seek: `owned_partitions`. What
  the application learns of it, within a deadline: `rebalance_listener`.
- Between rebalances `reconciler` looks for what differs, repairs and reports it, also streams without a partition.
  `reconcile_rules` are the rules only: for how long a difference has to last, when others are nudged.
- `fitness`: when a member leaves, and for how long. `group_overview`: reads all partitions with their owners, for the
  status page.
"""
