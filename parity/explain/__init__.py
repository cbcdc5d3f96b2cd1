"""Name every bug of a port at once, from one dump.

`explain` cuts the model's graph at what the port dumped (`lockstep.parity.graph`), holds every
piece against the noise of right arithmetic (`trial`), and searches the catalogue
(`lockstep.parity.faults`) for the smallest set of bugs that leaves nothing but noise (`search`,
`verdict`).
"""
