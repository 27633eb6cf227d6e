"""The store on PostgreSQL, which many processes on many machines share."""
