"""One client's report and the round's release: clip, noise, encode, sum, decode."""
