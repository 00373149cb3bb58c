"""Who owns what: one loop claims, moves and releases. Read `rebalancer`, then `claim_and_release`."""
