"""What a broker of AMQP 0-10 does towards its clients, each rule once: found by suites, by fuzzing, and by mishaps."""
