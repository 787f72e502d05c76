"""The server: round loop, strategies of the methods, results."""
