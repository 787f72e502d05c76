"""What server and clients share: settings, messages, data sets and networks."""
