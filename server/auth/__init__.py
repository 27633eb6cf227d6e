"""Who calls over HTTP, and how that is proven: tokens, OAuth, networks."""
