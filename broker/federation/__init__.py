"""Links of the broker to other brokers, and what runs over them."""
