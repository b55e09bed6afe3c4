"""Building journals and whole stores from content that is known."""
