"""The catalogue of a store and what it says: the topology, its second copy, and qpidd's Berkeley DB."""
