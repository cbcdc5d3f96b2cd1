"""Which of the explanations that fit is the port's: margins, bits, and the whole run."""
