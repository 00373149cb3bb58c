"""The operator's commands. A verb in `commands` reads with `groups`, `offsets` or `cluster` and shows with `tables`."""
