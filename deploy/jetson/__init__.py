"""Jetson boards: installation, and checks that need no board."""
