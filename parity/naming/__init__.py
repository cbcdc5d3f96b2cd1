"""Which tap a dumped name means, and how its tensor is brought into the tap's shape."""
