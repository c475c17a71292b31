"""Many rounds, and what survives a crash between them."""
