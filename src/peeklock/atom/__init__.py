"""Reading and writing the ATOM documents of the administration API, for the broker and the client."""
