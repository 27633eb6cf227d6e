"""The durable question: the same job, killed and answered, on several systems."""
