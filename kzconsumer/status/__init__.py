"""What a member tells of itself over HTTP. Read `observer`, then `report`."""
