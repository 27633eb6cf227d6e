"""The inbox: pages on which a person reads questions and decides them."""
