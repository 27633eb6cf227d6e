"""What both databases share: the statements and the schema, the store above appends, how rows are read."""
