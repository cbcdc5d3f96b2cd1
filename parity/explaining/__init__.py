"""The engine of `explain`: name every bug of a port at once, from one dump.

It cuts the model's graph at what the port dumped (`lockstep.parity.graph`), holds every piece
against the noise of right arithmetic (`trial`), searches the catalogue (`lockstep.parity.faults`)
for the smallest sets of bugs that leave nothing but noise (`search`), and chooses between the sets
of all pieces (`verdict`); what moves a value by less than a rounding is put to the vote (`votes`).
"""
