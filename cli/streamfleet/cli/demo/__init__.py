"""`streamfleet demo`: the main job on real parts, with a Redis server and a small model out of wheels."""
