"""Clusters of brokers: the store's identity, and the rules for starting a cluster."""
