"""The managed objects, class by class."""
