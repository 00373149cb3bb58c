"""An assignor that moves few partitions when members join or leave: `assignor = "sticky"`."""
