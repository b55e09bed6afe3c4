"""The managed objects: what an operator can see of the broker, class by class."""
