"""The store on PostgreSQL: one schema for each namespace, used by one node at a time. Requires psycopg."""
