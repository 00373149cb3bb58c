"""The verbs, one file for a family of them. Read `answer`, which frames most of them."""
