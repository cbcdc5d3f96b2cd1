"""The choices of routers that rounding alone may turn."""
