"""Reading a store that nobody runs: what it is, what it holds, how full it is, and what is wrong with it."""
