"""Recovery of any store into a clean one of version 2: its plan, lost salts, building and verifying it."""
