"""Results of the verbs as text. Read `text`, then any other."""
