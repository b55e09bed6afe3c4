"""The catalogue of a store and its content: the topology, its second copy, and qpidd's Berkeley DB."""
