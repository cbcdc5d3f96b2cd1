"""A recorded run computed again, stage by stage, from the values that a port had."""
