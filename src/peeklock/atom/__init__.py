"""The documents of the administration API (ATOM and XML), as the broker and its clients read and write them."""
