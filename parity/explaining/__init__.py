"""The engine of `explain`: name every bug of a port at once, from one dump.

It cuts the model's graph at what the port dumped (`lockstep.parity.graph`), holds every piece
against the noise of right arithmetic and searches the catalogue (`lockstep.parity.faults`) for the
smallest sets of bugs that leave nothing but noise (`searching`), chooses between the sets of all
pieces, by votes of bits where a bug moves less than a rounding (`deciding`), and says it in the
port's own words (`said`). `case` is one dump against one model, and begins all of it.
"""
