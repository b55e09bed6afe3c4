"""Rules of AMQP 0-10 as clients see them, each once: found by suites, by fuzzing, and in operation."""
