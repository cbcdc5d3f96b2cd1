"""Is a tensor right? Differences in figures, the gate, and what a comparison found."""
