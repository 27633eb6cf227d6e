"""How long the processes of a stage wait for one that is silent: three ways, because each shows other faults."""

from typing import Literal

Patience = Literal["hasty", "usual", "product"]
"""Nobody waits until the calls of a silent process are over; they do, for seconds; or all times are the product's own,
so that in a round a silent process is never replaced, and a dead one is."""
PATIENCE_VARIABLE = "CAMPAIGN_PATIENCE"
