"""The report of `qstore-recover`: as objects, and for people."""
