"""Clusters of brokers: the store's identity, and the rules by which a cluster starts."""
