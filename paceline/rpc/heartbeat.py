"""How often a model server says that it is alive, and how long its silence may last."""

# A stream carries a message from the server at least this often.
HEARTBEAT_S = 1.0
# After this long in silence no drafts are requested, and metrics show the server as down.
SILENT_S = 2 * HEARTBEAT_S
# After this long in silence a server counts as gone.
STALL_S = 10 * HEARTBEAT_S
