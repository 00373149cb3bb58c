"""Plants bugs that a program chooses at random, and measures how many of them the tests notice: `make audit-tests`.

`operators` makes the bugs, `reach` knows which tests execute which line, `audit` judges a sample, `report` shows it.
"""
