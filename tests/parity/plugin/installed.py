"""How a pytest that a test starts finds the plugin: as installed, or told by name."""

from importlib.metadata import entry_points

PLUGIN = "lockstep.parity.plugin"
# Loaded by name where pip already made it known, it would be registered twice.
KNOWN = any(one.value == PLUGIN for one in entry_points(group="pytest11"))
ARGUMENTS = () if KNOWN else ("-p", PLUGIN)
