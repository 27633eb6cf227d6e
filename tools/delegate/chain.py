"""What tells an agent how a goal came to it: names in `_meta` of a call, and how often a goal may be handed on."""

MAX_DEPTH = 3
DEPTH, CHAIN = "planwarden/depth", "planwarden/chain"
