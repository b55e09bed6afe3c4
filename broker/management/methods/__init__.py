"""What the methods of managed objects do."""
