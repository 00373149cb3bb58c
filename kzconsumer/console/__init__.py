"""Records shown as text: what `kzconsumer consume` is made of."""
