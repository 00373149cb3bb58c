"""Prints records as text: what `kzconsumer consume` is made of."""
