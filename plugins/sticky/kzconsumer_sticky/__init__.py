"""An assignor that moves few partitions when members come and go: `assignor = "sticky"`."""
