"""How far each partition is, and where that is stored. Read `progress`, then `committer`."""
