"""What takes too long for every change, one part after the other, with a table at the end: `make nightly`."""
