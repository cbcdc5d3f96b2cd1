"""What was found, in the words of the port: names, figures, the report and its JSON."""
