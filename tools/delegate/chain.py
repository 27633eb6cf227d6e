"""Keys in `_meta` of a call that tell an agent where its goal comes from, and how often a goal may be delegated."""

MAX_DEPTH = 3
DEPTH, CHAIN = "planwarden/depth", "planwarden/chain"
