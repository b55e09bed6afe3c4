"""Building journals and whole stores from known content."""
