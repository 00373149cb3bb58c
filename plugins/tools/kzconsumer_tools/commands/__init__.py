"""One file for a family of verbs. Read `answer`."""
