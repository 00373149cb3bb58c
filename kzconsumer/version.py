"""The version of this distribution, in a module of its own so that rooms need not import the public package."""

__version__ = "0.1.0"
