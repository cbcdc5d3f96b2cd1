"""Which value a port has for a number, where no known bug explains what it computed."""
