"""The client: local training and evaluation, personal state."""
