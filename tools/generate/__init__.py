"""Large synthetic fleets of stores with known content: what `qstore-generate` does."""
