"""What both databases share: statements, schema, appends, everything else that a store does, and how rows are read."""
