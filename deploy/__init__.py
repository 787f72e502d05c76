"""Federations of real processes: certificates, SuperLink, SuperNodes, runs."""
