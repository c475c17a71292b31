"""What the server makes of past releases; none of it costs epsilon."""
