"""Who owns what: one loop claims, moves and releases. Read `rebalancer`, then `claim_and_release`.

- The group as read, and this member in it: `membership`; what it keeps, moves, releases and claims: `assignment`.
- What is owned, and what the application learns of it: `owned_partitions`, `listener`.
- Between rebalances: `reconciler` by `reconcile_rules`; `fitness`: when a member leaves.
- All partitions with their owners, for the status page: `group_overview`.
"""
